"""The directory of a training run: begin, load, search, serve and export."""

from tfcap.runs.best import best_directory, measured, read_best, read_intervals, read_scores
from tfcap.runs.build import build_model, width_of, with_backbone
from tfcap.runs.checkpoints import step_of
from tfcap.runs.compatibility import (
    PARAMS,
    best_measured,
    check_vocabulary,
    read_fingerprint,
    source_of_features,
)
from tfcap.runs.decoding_options import (
    build_search,
    changed,
    decoding_options,
    search,
    search_of,
)
from tfcap.runs.ensemble import load_together, validated
from tfcap.runs.places import data_of
from tfcap.runs.run import (
    Run,
    begin,
    count_parameters,
    create,
    load,
    load_data,
    load_refined,
)
from tfcap.runs.server import CaptionServer, server

__all__ = [
    "PARAMS",
    "CaptionServer",
    "Run",
    "begin",
    "best_directory",
    "best_measured",
    "build_model",
    "build_search",
    "changed",
    "check_vocabulary",
    "count_parameters",
    "create",
    "data_of",
    "decoding_options",
    "load",
    "load_data",
    "load_refined",
    "load_together",
    "measured",
    "read_best",
    "read_intervals",
    "read_scores",
    "read_fingerprint",
    "search",
    "search_of",
    "server",
    "source_of_features",
    "step_of",
    "validated",
    "width_of",
    "with_backbone",
]
