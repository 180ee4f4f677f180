"""Compares all systems under the same tuning: one table with seeds and intervals.

`study` trains and scores; it is what `python -m tfcap.benchmark --what=quality` runs.
"""

from tfcap.measure.quality.jobs import BATCH, CAPTIONS, Options
from tfcap.measure.quality.rows import KEYS
from tfcap.measure.quality.study import study

STEP = BATCH * CAPTIONS  # captions of a training step

__all__ = ["KEYS", "STEP", "Options", "study"]
