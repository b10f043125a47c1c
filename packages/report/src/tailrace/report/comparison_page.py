"""``compare.html``: several systems side by side, simulated ones and real runs alike."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tailrace.controller.members import REPLICA, TRAINER
from tailrace.report.charts.chart import Chart, TimeAxis, Trace, axis, bars
from tailrace.report.charts.timeline import MOST_SPANS, timeline_chart
from tailrace.report.figures.comparison import SPOKEN, cause_share, causes, comparison, rate, ratios
from tailrace.report.figures.system import Figures, differences
from tailrace.report.fold.folds import Folds, evenly
from tailrace.report.fold.interruptions import Mark
from tailrace.report.fold.loads import Loads
from tailrace.report.fold.timeline import Doing, Span
from tailrace.report.html.page import render_page
from tailrace.report.reason_words import ADMITTED

SHADES = 6
FAINTEST = 0.22
CAUSE_COLORS = ("$idle", "$pulling", "$control-3", "$control-1", "$control-4", "$control-5", "$waiting", "$starting")
WORK_COLOR = {TRAINER: "$training", REPLICA: "$generating"}
BAR_HEIGHT = 44
ROWS = 6  # replicas in a timeline
STEPS = 4  # of the slowest system
LEAST_STEPS = 1.5
MARGIN = 0.01  # for what is written at the end
INDENT = "\u2003"


def sentence(systems: Sequence[Figures]) -> str:
    """Which is fastest, and by how much over the first."""
    compared, rates = rate(systems)
    best = max(range(len(systems)), key=rates.__getitem__)
    said = f"{systems[best].name} trains on {rates[best]:,.0f} {compared.partition('/')[0]} a second"
    ratio = ratios(systems)[best]
    if ratio is None or best == 0:
        return f"{said}, the most of {len(systems)}."
    return f"{said}, {ratio:.2f} times as many as {systems[0].name}."


def compare_page(systems: Sequence[Compared], title: str) -> str:
    """The page as HTML."""
    figures = [system.figures for system in systems]
    table = comparison(figures)
    rows = [[row[0].replace("  ", INDENT), *row[1:]] for row in table.rows]
    fleets = list(dict.fromkeys(one.fleet for one in figures))
    groups = {"bars": bar_charts(figures), "timelines": timelines(systems)}
    return render_page(
        "comparison.html.jinja",
        title=title,
        charts=[chart for group in groups.values() for chart in group],
        groups=groups,
        sentence=sentence(figures),
        fleets=fleets if len(fleets) == 1 else [f"{one.name}: {one.fleet}" for one in figures],
        warnings=[
            *differences(figures),
            *(f"{system.figures.name}: {text}" for system in systems for text in system.warnings),
        ],
        compared=replace(table, rows=rows),
    )


# Charts of several systems beside each other.


@dataclass(frozen=True, slots=True)
class Compared:
    """One of the systems.

    Args:
        warnings: what is off.
    """

    figures: Figures
    folds: Folds
    warnings: Sequence[str] = ()


def bar_charts(systems: Sequence[Figures]) -> list[Chart]:
    """Throughput, staleness, and how the time of each role was spent."""
    return [_throughput(systems), _staleness(systems), *(_time(systems, role) for role in (TRAINER, REPLICA))]


def timelines(systems: Sequence[Compared]) -> list[Chart]:
    """The trainer and some replicas of each, over stretches of one length at the end of what was measured."""
    ends_s = [before_the_drain(system.folds.timeline.spans, *system.figures.measured_s) for system in systems]
    slowest_s = max(system.figures.step_s for system in systems)
    length_s = min(STEPS * slowest_s, max(min(ends_s), LEAST_STEPS * slowest_s))
    found = []
    for place, (system, end_s) in enumerate(zip(systems, ends_s, strict=True)):
        timeline, replicas = system.folds.timeline, evenly(system.folds.replicas, ROWS)
        begin_s = max(0.0, end_s - length_s)
        spans = [span for span in timeline.spans if span.end_s > begin_s and _drawn(span, replicas)]
        pieces, opacity = shaded(spans, system.folds.loads)
        chart = timeline_chart(
            sorted(pieces, key=lambda piece: piece.end_s)[-MOST_SPANS:],
            [mark for mark in timeline.marks if mark.at_s >= begin_s and _drawn(mark, replicas)],
            (begin_s, end_s + MARGIN * length_s),
            TimeAxis.for_length(end_s),
            id_=f"timeline-{place}",
            title=system.figures.name,
            steps=system.folds.batches.trained,
            opacity=opacity,
        )
        found += [] if chart is None else [chart]
    return found


def before_the_drain(spans: Iterable[Span], begin_s: float, end_s: float) -> float:
    """When the first replica found every prompt of the run admitted; the end of the stretch if that leaves nothing of it."""
    idle = (span.start_s for span in spans if span.doing is Doing.IDLE and span.label == ADMITTED)
    drain_s = min((at_s for at_s in idle if at_s < end_s), default=end_s)
    return drain_s if drain_s - begin_s > (end_s - begin_s) / 4 else end_s


def _drawn(one: Span | Mark, replicas: Collection[str]) -> bool:
    return one.role == TRAINER or (one.role == REPLICA and one.member in replicas)


def _throughput(systems: Sequence[Figures]) -> Chart:
    compared, rates = rate(systems)
    names = [figures.name for figures in systems]
    said = [
        f"{value:,.0f}" + ("" if ratio is None else f"<br>{ratio:.2f} x")
        for value, ratio in zip(rates, ratios(systems), strict=True)
    ]
    look = {"text": said, "textposition": "inside", "insidetextanchor": "end", "hoverinfo": "skip"}
    layout = {"xaxis": {"type": "category"}, "yaxis": axis(compared, rangemode="tozero"), "showlegend": False}
    return Chart("compare-throughput", "Throughput", [bars(names, rates, compared, "$accent", **look)], layout)


def _staleness(systems: Sequence[Figures]) -> Chart:
    names = [figures.name for figures in systems]
    means = [round(figures.staleness_mean, 3) for figures in systems]
    data = [
        bars(names, means, "mean", "$training"),
        bars(names, [figures.staleness_max for figures in systems], "maximum", "$control-4"),
    ]
    layout = {"xaxis": {"type": "category"}, "yaxis": axis("versions", rangemode="tozero"), "barmode": "group"}
    return Chart("compare-staleness", "Staleness", data, layout)


def _time(systems: Sequence[Figures], role: str) -> Chart:
    known = [figures for figures in systems if figures.role(role) is not None]
    names = [figures.name for figures in known]
    data = [_share([figures.busy(role) or 0.0 for figures in known], names, "busy", WORK_COLOR[role])]
    for place, cause in enumerate(causes(known, role)):
        shares = [cause_share(figures, role, cause) for figures in known]
        data.append(_share(shares, names, cause, CAUSE_COLORS[place % len(CAUSE_COLORS)]))
    layout = {
        "xaxis": axis("share of the time", tickformat=".0%", range=[0, 1]),
        "yaxis": {"type": "category", "autorange": "reversed", "automargin": True, "showgrid": False},
        "barmode": "stack",
        "legend": {"traceorder": "normal"},
        "bargap": 0.3,
    }
    height = 150 + BAR_HEIGHT * max(2, len(known))
    return Chart(f"compare-{role}", f"What the {SPOKEN[role]} did", data, layout, height=height)


def _share(shares: Sequence[float], names: Sequence[str], name: str, color: str) -> Trace:
    return {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "x": [round(share, 4) for share in shares],
        "y": list(names),
        "marker": {"color": color},
        "hovertemplate": f"%{{y}}: {name}, %{{x:.1%}}<extra></extra>",
    }


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
