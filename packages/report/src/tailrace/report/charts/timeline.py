"""The timeline as a chart: one row per member, and what it did when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from html import escape
from types import MappingProxyType
from typing import Any

from tailrace.controller.members import DATA, ENVIRONMENT, RANKER, RELAY, REPLICA, SCORER, TRAINER
from tailrace.pipeline.run.figures.batches import Batch
from tailrace.report.charts.chart import Chart, TimeAxis, Trace, thinned
from tailrace.report.fold.interruptions import Mark, MarkKind
from tailrace.report.fold.timeline import BUBBLES, Doing, Span

MOST_SPANS = 5000
MOST_MARKS = 1500
MOST_NAMED = 3
COLORS = {
    Doing.TRAINING: "$training",
    Doing.GENERATING: "$generating",
    Doing.EVALUATING: "$evaluating",
    Doing.PULLING: "$pulling",
    Doing.PUBLISHING: "$publishing",
    Doing.RELEASING: "$releasing",
    Doing.LENT: "$lent",
    Doing.STARTING: "$starting",
    Doing.DOWN: "$down",
    Doing.IDLE: "$idle",
    Doing.WAITING: "$waiting",
    Doing.HOLDING: "$holding",
}
SYMBOLS = {
    MarkKind.REPACK: ("triangle-up", "$repack"),
    MarkKind.PULL: ("triangle-down", "$pulling"),
    MarkKind.EVICTION: ("diamond", "$releasing"),
    MarkKind.STOPPING: ("square-open", "$releasing"),
    MarkKind.DOWN: ("x", "$down"),
    MarkKind.RESTART: ("circle", "$restart"),
    MarkKind.SUSPECT: ("diamond-open", "$down"),
    MarkKind.PULL_FAILED: ("cross", "$down"),
    MarkKind.ADDED: ("star", "$restart"),
    MarkKind.REMOVED: ("star-open", "$restart"),
    MarkKind.PUBLISHED: ("line-ns-open", "$ink"),
}
MERGED = {MarkKind.PULL, MarkKind.EVICTION}  # frequent: drawn once for each replica and moment
MOMENTS = 150  # moments of the time that is shown
BACKGROUND = BUBBLES | {Doing.HOLDING}


def timeline_chart(
    spans: Sequence[Span],
    marks: Sequence[Mark],
    shown_s: tuple[float, float],
    time: TimeAxis,
    *,
    id_: str = "timeline",
    title: str = "Who did what",
    steps: Sequence[Batch] = (),
    opacity: Mapping[Span, float] = MappingProxyType({}),
) -> Chart | None:
    """One row per member that has a span; drag to zoom, double-click to see it all.

    Args:
        shown_s: the stretch of time that is shown first.
        steps: batches of which it is said when they were trained on.
        opacity: of spans that are not drawn in full.
    """
    if not spans:
        return None
    rows = {key: _row(*key) for key in sorted({(span.role, span.member) for span in spans}, key=_order)}
    shown, shortest_s = drawable(spans, MOST_SPANS)
    work_on_top = sorted(COLORS, key=lambda doing: doing not in BACKGROUND)
    data = [_bars(doing, shown, rows, time, opacity) for doing in work_on_top]
    begin_s, end_s = shown_s
    drawn = merged(marks, MERGED, (end_s - begin_s) / MOMENTS)
    data += [_marks(kind, drawn, rows, time) for kind in SYMBOLS]
    lines = [
        _line(time(mark.at_s), "resumed", color="$down", dash="dash", xanchor="left", yanchor="top")
        for mark in marks
        if mark.kind is MarkKind.RESUMED
    ]
    lines += [
        _line(time(batch.ended_s), f"v{batch.version}", color="$muted", dash="dot", xanchor="center", yanchor="bottom")
        for batch in steps
        if begin_s <= batch.ended_s <= end_s
    ]
    layout = {
        "barmode": "overlay",
        "hovermode": "closest",
        "xaxis": {
            "title": {"text": f"run's clock ({time.unit})"},
            "range": [time(at) for at in shown_s],
        },
        "yaxis": {
            "categoryorder": "array",
            "categoryarray": list(rows.values())[::-1],
            "type": "category",
            "fixedrange": True,
            "showgrid": False,
            "automargin": True,
        },
        "legend": {"yref": "container", "y": 0.995, "yanchor": "top"},
        "margin": {"t": 66},
        "shapes": lines,
        "dragmode": "zoom",
    }
    note = "Drag to zoom in, double-click for all of it. Light gaps are bubbles: hover for their cause."
    if shortest_s:
        note += f" Drawn without detail below {shortest_s:.2g} s."
    height = 130 + max(150, min(720, 36 * len(rows)))
    return Chart(id_, title, [trace for trace in data if trace["x"]], layout, note, height, wide=True)


def drawable(spans: Sequence[Span], most: int) -> tuple[list[Span], float]:
    """At most about `most` spans: short ones are swallowed by the one before them. Returns the limit used, in seconds."""
    shortest_s = 0.0
    shown = list(spans)
    end_s = max(span.end_s for span in spans)
    while len(shown) > most:
        shortest_s = max(2 * shortest_s, end_s / 20_000)
        merged: dict[tuple[str, str], Span] = {}
        kept: list[Span] = []
        for span in sorted(shown, key=lambda span: span.start_s):
            key = (span.role, span.member)
            before = merged.get(key)
            if before is not None and (span.duration_s < shortest_s or before.doing is span.doing):
                merged[key] = Span(*key, before.doing, before.start_s, span.end_s, before.label)
                continue
            if before is not None:
                kept.append(before)
            merged[key] = span
        shown = kept + list(merged.values())
        if shortest_s > end_s:
            break
    return shown, shortest_s


def merged(marks: Sequence[Mark], kinds: Set[MarkKind], within_s: float) -> list[Mark]:
    """Marks of these kinds that a member has within so many seconds become one, which names the first few."""
    kept: list[Mark] = []
    begun: dict[tuple[MarkKind, str, str], list[Mark]] = {}
    groups: list[list[Mark]] = []
    for mark in marks:
        if mark.kind not in kinds:
            kept.append(mark)
            continue
        key = (mark.kind, mark.role, mark.member)
        group = begun.get(key)
        if group is None or mark.at_s - group[0].at_s > within_s:
            group = begun[key] = []
            groups.append(group)
        group.append(mark)
    for group in groups:
        more = f" and {len(group) - MOST_NAMED} times more" if len(group) > MOST_NAMED else ""
        label = "; ".join(mark.label for mark in group[:MOST_NAMED]) + more
        kept.append(replace(group[0], label=label))
    return sorted(kept, key=lambda mark: mark.at_s)


def _line(x: float, text: str, *, color: str, dash: str, **anchors: str) -> dict[str, Any]:
    font = {"size": 11, "color": color}
    label = {"text": text, "font": font, "textposition": "end", "textangle": 0, **anchors}
    line = {"color": color, "width": 1.2, "dash": dash}
    return {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": line, "label": label}


def _bars(
    doing: Doing,
    spans: Sequence[Span],
    rows: dict[tuple[str, str], str],
    time: TimeAxis,
    opacity: Mapping[Span, float],
) -> Trace:
    mine = [span for span in spans if span.doing is doing]
    faint = {"opacity": [round(opacity.get(span, 1.0), 2) for span in mine]} if opacity else {}
    return {
        "type": "bar",
        "orientation": "h",
        "name": str(doing),
        "base": [time(span.start_s) for span in mine],
        "x": [time(span.duration_s) for span in mine],
        "y": [rows[span.role, span.member] for span in mine],
        "hovertext": [f"{rows[s.role, s.member]}: {s.doing}, {s.duration_s:.2f} s<br>{escape(s.label)}" for s in mine],
        "hoverinfo": "text",
        "marker": {"color": COLORS[doing], "line": {"width": 0}, **faint},
        "width": 0.7,
        "legendrank": 900 + 300 * (doing in BACKGROUND),
    }


def _marks(kind: MarkKind, marks: Sequence[Mark], rows: dict[tuple[str, str], str], time: TimeAxis) -> Trace:
    symbol, color = SYMBOLS[kind]
    mine = thinned([mark for mark in marks if mark.kind is kind and (mark.role, mark.member) in rows], MOST_MARKS)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": str(kind),
        "x": [time(mark.at_s) for mark in mine],
        "y": [rows[mark.role, mark.member] for mark in mine],
        "hovertext": [f"{kind}: {rows[m.role, m.member]}<br>{escape(m.label)}" for m in mine],
        "hoverinfo": "text",
        "marker": {"symbol": symbol, "size": 10, "color": color, "line": {"width": 1.2, "color": "$mark-edge"}},
    }


def _row(role: str, member: str) -> str:
    if role in (TRAINER, DATA, SCORER, RANKER):
        return role
    return member if role == REPLICA else f"{role} {member}"


def _order(key: tuple[str, str]) -> tuple[int, int, str]:
    role, member = key
    digits = "".join(letter for letter in member if letter.isdigit())
    return ((TRAINER, DATA, SCORER, RANKER, ENVIRONMENT, RELAY, REPLICA).index(role), int(digits or 0), member)
