"""The paper's values and ours as bars, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.fleetsim.picture.svg import Svg
from tailrace.fleetsim.reproduce.records import Record
from tailrace.fleetsim.reproduce.targets import Value

WIDTH, NAME, BARS, ROW = 900.0, 330.0, 430.0, 34.0
TOP = 64.0


def draw(paper: str, records: Sequence[Record]) -> str:
    """Two bars for each value that is a number; the longer of the two fills the row."""
    values = [
        (record, index, float(at), float(record.ours[index]))
        for record in records
        if record.ours is not None
        for index, at in enumerate(record.target.paper)
        if not isinstance(at, bool)
    ]
    svg = Svg(WIDTH, f"{paper}: the paper and the simulator")
    svg.text(16, 28, f"{paper.capitalize()}: the paper's values and ours", "title")
    svg.rect(16, 40, 10, 10, "muted", radius=2)
    svg.text(32, 49, "paper", "small")
    svg.rect(84, 40, 10, 10, "accent", radius=2)
    svg.text(100, 49, "ours (* fitted)", "small")
    for row, (record, index, at, ours) in enumerate(values):
        top = TOP + row * ROW
        target = record.target
        label = f" {target.labels[index]}" if target.labels else ""
        svg.text(NAME - 8, top + 16, f"{target.id}{label}{'' if record.held_out else ' *'}", "small", "right")
        longest = max(abs(at), abs(ours)) or 1.0
        for offset, value, color in ((2, at, "muted"), (14, ours, "accent")):
            width = max(1.0, BARS * abs(value) / longest)
            svg.rect(NAME, top + offset, width, 10, color, radius=2)
            svg.text(NAME + width + 6, top + offset + 9, _number(value), "small", "muted")
    return svg.draw(TOP + len(values) * ROW + 12)


def _number(value: Value) -> str:
    return f"{value:.3g}"
