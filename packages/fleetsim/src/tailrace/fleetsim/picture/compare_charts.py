"""Charts of several systems beside each other."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.fleetsim.picture.comparison import SPOKEN, cause_share, causes, rate, ratios
from tailrace.fleetsim.picture.figures import Figures
from tailrace.fleetsim.picture.scene import Scene, recent
from tailrace.pipeline.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.reporting.charts import Chart, TimeAxis, Trace, axis, bars
from tailrace.pipeline.run.reporting.timeline_chart import timeline_chart

CAUSE_COLORS = ("$idle", "$pulling", "$control-3", "$control-1", "$control-4", "$control-5", "$waiting", "$starting")
WORK_COLOR = {TRAINER: "$training", REPLICA: "$generating"}
BAR_HEIGHT = 44


def bar_charts(systems: Sequence[Figures]) -> list[Chart]:
    """Throughput, staleness, and how the time of each role was spent."""
    return [_throughput(systems), _staleness(systems), *(_time(systems, role) for role in (TRAINER, REPLICA))]


def timelines(scenes: Sequence[Scene]) -> list[Chart]:
    """One for each system."""
    found = []
    for place, scene in enumerate(scenes):
        spans, time = recent(scene.spans), TimeAxis.for_length(scene.shown_s[1])
        chart = timeline_chart(spans, scene.marks, scene.shown_s, time, id_=f"timeline-{place}", title=scene.name)
        if chart is not None:
            found.append(chart)
    return found


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
