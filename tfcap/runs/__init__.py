"""Training runs on disk: begin, load, decode, serve and export."""

from tfcap.runs.checkpoints import newest_checkpoint, step_of
from tfcap.runs.run import (
    INFO,
    PARAMS,
    UNKNOWN,
    Run,
    begin,
    best_directory,
    build_model,
    build_search,
    check_vocabulary,
    count_parameters,
    create,
    differing,
    load,
    load_data,
    load_together,
    read_best,
    read_fingerprint,
    read_info,
    signature,
    signature_of,
    source_of_features,
    width_of,
    with_backbone,
)
from tfcap.runs.server import CaptionServer, server
