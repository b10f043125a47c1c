"""How much ran, as the strength of a colour: spans of generation are cut where the load of their replica changes its shade."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tailrace.report.fold.loads import Loads
from tailrace.report.fold.timeline import Doing, Span

SHADES = 6
FAINTEST = 0.22


def shaded(spans: Iterable[Span], loads: Loads) -> tuple[list[Span], dict[Span, float]]:
    """The spans, cut, and the opacity of those that are not drawn in full: the most that ran anywhere is 1."""
    rows = {name: loads.running.row(place) for place, name in enumerate(loads.replicas)}
    peak = max((max(row, default=0.0) for row in rows.values()), default=0.0)
    pieces: list[Span] = []
    opacity: dict[Span, float] = {}
    for span in spans:
        row = rows.get(span.member)
        if span.doing is not Doing.GENERATING or not row or not peak:
            pieces.append(span)
            continue
        for piece, shade in _cut(span, loads.running.ends_s, row, peak):
            pieces.append(piece)
            opacity[piece] = FAINTEST + (1 - FAINTEST) * shade / SHADES
    return pieces, opacity


def _cut(span: Span, ends_s: list[float], row: list[float], peak: float) -> Iterator[tuple[Span, int]]:
    """The pieces of a span, each with its shade. What ran behind the last sample is taken for what ran in it."""
    begin_s, shade = span.start_s, 0
    for place in range(bisect_right(ends_s, begin_s), len(ends_s)):
        found = max(1, math.ceil(SHADES * row[place] / peak))
        since_s = max(span.start_s, ends_s[place - 1] if place else 0.0)
        if since_s >= span.end_s:
            break
        if shade and found != shade:
            yield replace(span, start_s=begin_s, end_s=since_s), shade
            begin_s = since_s
        shade = found
    yield replace(span, start_s=begin_s), shade or 1
