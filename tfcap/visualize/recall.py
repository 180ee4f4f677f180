"""Draws recall curves: the share of the correct items among the first items of a ranking."""

from collections.abc import Mapping

from tfcap.files import replacing
from tfcap.metrics.retrieval import PERCENT, Summary
from tfcap.visualize.maps import png


def write(path: str, summaries: Mapping[str, Summary]) -> None:
    """Writes a PNG with a line for each direction, as in the comparison on IAPR TC-12.

    Source: Mao et al., ICLR 2015, supplement 10.2.

    Args:
      path: the file; it appears only when it is complete.
      summaries: the statistics by direction.
    """
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(6, 4.5), dpi=100, layout="constrained")
    axis = drawing.subplots()
    for name, summary in summaries.items():
        axis.plot(PERCENT, summary.curve, label=name, linewidth=1.6)
    axis.plot(PERCENT, PERCENT, color="0.65", linewidth=1, linestyle=":", label="chance")
    axis.set(xlim=(0, 100), ylim=(0, 100), xlabel="first items (%)", ylabel="recall (%)")
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", fontsize=9)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(png(drawing))
