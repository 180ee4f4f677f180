"""Computes caption scores and diversity, and reads result files, without TensorFlow."""

# ruff: noqa: F401
from tfcap.metrics import chair, clipscore
from tfcap.metrics.coco import CocoScorer, leave_one_out_cider
from tfcap.metrics.diversity import distinct_share
from tfcap.metrics.results import (
    Hypotheses,
    Scores,
    check_ids,
    format_table,
    load_hypotheses,
    load_references,
    load_results,
    reference_set,
    write_hypotheses,
    write_metrics,
    write_results,
)

__all__ = [
    "CocoScorer",
    "Hypotheses",
    "Scores",
    "chair",
    "check_ids",
    "clipscore",
    "distinct_share",
    "format_table",
    "leave_one_out_cider",
    "load_hypotheses",
    "load_references",
    "load_results",
    "reference_set",
    "write_hypotheses",
    "write_metrics",
    "write_results",
]
