"""Scores, captions, pictures and attention of one or more runs, as one page for a browser."""

from tfcap.report.page import Attended, Run, compared_runs, write

__all__ = ["Attended", "Run", "compared_runs", "write"]
