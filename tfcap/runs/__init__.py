"""Training runs on disk: begins and resumes runs, creates new ones, and loads them."""

from tfcap.runs.build import build_model, build_search, count_parameters, with_backbone
from tfcap.runs.checkpoints import newest_checkpoint, step_of
from tfcap.runs.confidence import write_confidence
from tfcap.runs.directory import begin, create, differing
from tfcap.runs.fingerprint import read_fingerprint, source_of_features
from tfcap.runs.info import (
    INFO,
    PARAMS,
    UNKNOWN,
    best_directory,
    read_best,
    read_info,
    signature,
    signature_of,
)
from tfcap.runs.run import Run, check_vocabulary, load, load_data, load_together

__all__ = [
    "INFO",
    "PARAMS",
    "UNKNOWN",
    "Run",
    "begin",
    "best_directory",
    "build_model",
    "build_search",
    "check_vocabulary",
    "count_parameters",
    "create",
    "differing",
    "load",
    "load_data",
    "load_together",
    "newest_checkpoint",
    "read_best",
    "read_fingerprint",
    "read_info",
    "signature",
    "signature_of",
    "source_of_features",
    "step_of",
    "with_backbone",
    "write_confidence",
]
