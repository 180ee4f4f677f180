"""Draws a `Calibration` for the page of a report: risk over coverage, and the reliability."""

import html
from collections.abc import Iterable

from tfcap.metrics.calibration import Calibration

_SIDE = 300  # of the square of a diagram, in pixels
_LEFT, _TOP, _BELOW = 46, 28, 42
_BETWEEN = 60
_DASHES = ("", "7 3", "2 3", "1 6")
_COLOURS = ("var(--run-0)", "var(--run-1)", "var(--run-2)", "var(--soft)")


def figure(measured: Calibration) -> str:
    """Draws two diagrams side by side, as the text of an SVG element.

    The left one has the risk over the coverage of each order, and of chance. In the right one, each
    bin is a point: the share of usable captions over the confidence. Its diagonal is a calibrated
    confidence.

    Args:
      measured: the measurements.
    """
    curves = {**measured.curves, "chance": [measured.chance] * 100}
    left: list[str] = []
    # The legend stands where curves rarely are: all end at the risk of chance.
    x, top = (110, 220) if measured.chance > 0.5 else (10, 0)
    for number, (name, risks) in enumerate(curves.items()):
        points = _points((index / len(risks), risk) for index, risk in enumerate(risks, 1))
        colour, dashes = _COLOURS[number % 4], _DASHES[number % 4]
        style = f'fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'
        y = top + 16 + 16 * number
        left.append(f'<polyline points="{points}" {style}/>')
        left.append(f'<path d="M{x} {y} h26" {style}/>{_text(x + 32, y + 4, name, "start")}')
    right = [f'<path d="M0 {_SIDE} L{_SIDE} 0" stroke="var(--soft)" stroke-dasharray="4 4"/>']
    bins = [(one.confidence, one.usable) for one in measured.bins]
    right.append(f'<polyline points="{_points(bins)}" fill="none" stroke="{_COLOURS[0]}"/>')
    for one in measured.bins:
        place = f'cx="{_SIDE * one.confidence:.1f}" cy="{_SIDE * (1 - one.usable):.1f}"'
        tip = f"{one.images} captions: confidence {one.confidence:.2f}, usable {one.usable:.2f}"
        dot = f'<circle {place} r="4" fill="{_COLOURS[0]}">'
        right.append(f"{dot}<title>{tip}</title></circle>")
    width, height = 2 * (_LEFT + _SIDE) + _BETWEEN, _TOP + _SIDE + _BELOW
    return (
        f'<svg viewBox="0 0 {width} {height}" style="max-width:{width}px;width:100%" role="img" '
        'aria-label="Risk over coverage, and share of usable captions over confidence">'
        f"{_diagram(_LEFT, 'coverage', 'not usable', left)}"
        f"{_diagram(2 * _LEFT + _SIDE + _BETWEEN // 2, 'confidence', 'usable', right)}</svg>"
    )


def _points(pairs: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{_SIDE * x:.1f},{_SIDE * (1 - y):.1f}" for x, y in pairs)


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    style = f'font-size="12" fill="var(--ink)" text-anchor="{anchor}"'
    return f'<text x="{x:.0f}" y="{y:.0f}" {style}>{html.escape(text)}</text>'


def _diagram(left: int, x_name: str, y_name: str, drawn: list[str]) -> str:
    """Returns a diagram with both axes from 0 to 1."""
    ticks = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        at = _SIDE * tick
        ticks.append(f'<path d="M0 {at} H{_SIDE} M{at} 0 V{_SIDE}" stroke="var(--line)"/>')
        ticks.append(_text(at, _SIDE + 16, f"{tick:g}"))
        ticks.append(_text(-6, _SIDE - at + 4, f"{tick:g}", "end"))
    names = _text(_SIDE / 2, _SIDE + 34, x_name) + _text(0, -10, f"share {y_name}", "start")
    return f'<g transform="translate({left} {_TOP})">{"".join(ticks)}{names}{"".join(drawn)}</g>'
