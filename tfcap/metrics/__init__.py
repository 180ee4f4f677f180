"""Official caption scores, result files and diversity; no TensorFlow in here."""

from tfcap.metrics.coco import CocoScorer, leave_one_out_cider
from tfcap.metrics.diversity import distinct_share
from tfcap.metrics.results import (
    Scores,
    check_ids,
    format_table,
    load_references,
    load_results,
    write_metrics,
    write_results,
)

__all__ = [
    "CocoScorer",
    "Scores",
    "check_ids",
    "distinct_share",
    "format_table",
    "leave_one_out_cider",
    "load_references",
    "load_results",
    "write_metrics",
    "write_results",
]
