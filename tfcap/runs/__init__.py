"""The directory of a training run: begin, load, search, serve and export."""

from tfcap.runs.build import build_model
from tfcap.runs.decoding_options import build_search, decoding_options, search
from tfcap.runs.ensemble import load_together
from tfcap.runs.run import (
    BACKBONE,
    OPTIONAL,
    PARAMS,
    Run,
    begin,
    best_directory,
    check_vocabulary,
    count_parameters,
    create,
    differences,
    load,
    read_best,
    read_fingerprint,
    step_of,
)
from tfcap.runs.server import CaptionServer, server

__all__ = [
    "BACKBONE",
    "OPTIONAL",
    "PARAMS",
    "CaptionServer",
    "Run",
    "begin",
    "best_directory",
    "build_model",
    "build_search",
    "check_vocabulary",
    "count_parameters",
    "create",
    "decoding_options",
    "differences",
    "load",
    "load_together",
    "read_best",
    "read_fingerprint",
    "search",
    "server",
    "step_of",
]
