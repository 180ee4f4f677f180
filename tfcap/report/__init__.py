"""Writes an HTML page with scores, captions, pictures and attention of one or more runs."""

from tfcap.report.page import Attended, Run, compared_runs, write

__all__ = ["Attended", "Run", "compared_runs", "write"]
