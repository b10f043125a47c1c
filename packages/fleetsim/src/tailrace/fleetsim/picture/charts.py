"""Charts of a simulation that a run's report does not have, or makes of other data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tailrace.fleetsim.picture.scene import Scene, recent
from tailrace.fleetsim.picture.series import Series
from tailrace.fleetsim.picture.watch import Watched
from tailrace.fleetsim.picture.watcher import BUFFERED, FIRST_LAG, GENERATED, LAGS, POOLED
from tailrace.pipeline.run.reporting.charts import Chart, TimeAxis, axis, bars, line, step_axis, thinned
from tailrace.pipeline.run.reporting.staleness import COLORS as LAG_COLORS
from tailrace.pipeline.run.reporting.staleness import batches_chart
from tailrace.pipeline.run.reporting.timeline_chart import timeline_chart

HEAT_COLUMNS = 300
POINTS = 400
ROW_HEIGHT, LEAST_HEIGHT, MOST_HEIGHT = 14, 220, 620


def timeline(scene: Scene, time: TimeAxis, *, id_: str = "timeline", title: str = "Who did what") -> Chart | None:
    """The members of a scene."""
    spans = recent(scene.spans)
    return timeline_chart(spans, scene.marks, scene.shown_s, time, id_=id_, title=title)


def heat_charts(watched: Watched, time: TimeAxis) -> list[Chart]:
    """Running trajectories and KV cache in use, of each watched replica over time."""
    watcher = watched.watcher
    loads = watcher.loads.coarser(HEAT_COLUMNS)
    if not loads.ends_s:
        return []
    count = len(watcher.replicas)
    rows = [loads.row(place) for place in range(2 * count)]
    running = [[round(value, 1) for value in row] for row in rows[:count]]
    kv = [[round(100 * value) for value in row] for row in rows[count:]]
    of = f"{count} of the {watcher.fleet_size:,} replicas, evenly chosen. " if watcher.sampled else ""
    note = f"{of}One row per replica. In the colour of idleness: nothing runs."
    return [
        _heat("running", "Running trajectories of each replica", running, watched, loads, time, "heat", "", note),
        _heat("kv", "KV cache in use on each replica", kv, watched, loads, time, "fill", " %", of.strip()),
    ]


def staleness_charts(watched: Watched) -> list[Chart]:
    """The distribution after the warm-up, and batch by batch over the whole run."""
    result, rows = watched.result, [row for row in watched.rows if row.lags]
    if not rows or not result.staleness:
        return []
    total = sum(result.staleness.values())
    lags = list(range(max(result.staleness) + 1))
    shares = [result.staleness.get(lag, 0) / total for lag in lags]
    layout = {
        "xaxis": axis("versions behind the trainer", dtick=max(1, len(lags) // 12)),
        "yaxis": axis("share of trajectories", tickformat=".0%"),
        "showlegend": False,
    }
    words = f"Mean {result.staleness_mean:.2f}, at most {result.staleness_max}, after the warm-up."
    steps = list(range(1, len(rows) + 1))
    means = [sum(lag * count for lag, count in row.lags.items()) / sum(row.lags.values()) for row in rows]
    by_step = [
        line(steps, [max(row.lags) for row in rows], "maximum", "$control-4", width=1.4, line={"shape": "hv"}),
        line(steps, means, "mean", "$training"),
    ]
    step_layout = {"xaxis": step_axis(len(rows)), "yaxis": axis("versions", rangemode="tozero")}
    note = "Staleness: the trainer's version less the oldest that generated a trajectory."
    return [
        Chart("staleness", "Staleness", [bars(lags, shares, "trajectories", "$training")], layout, words),
        Chart("staleness-steps", "Staleness by step", by_step, step_layout),
        batches_chart([Counter(row.lags) for row in rows], "Staleness of each batch", note),
    ]


def flow_charts(watched: Watched, time: TimeAxis) -> list[Chart]:
    """Throughput, trajectories in flight by the staleness of their weights, and what waits."""
    watcher = watched.watcher
    flow = watcher.flow.coarser(POINTS)
    if not flow.ends_s:
        return []
    at = [time(end_s) for end_s in flow.ends_s]
    over = axis(f"simulated time ({time.unit})", range=_shown(watched, time))
    generated = line(at, _rounded(flow.row(GENERATED)), "generated", "$generating", width=1.2)
    rates = [{**generated, "fill": "tozeroy", "fillcolor": "$generating-band"}]
    ends_s = [0.0, *(row.at_s for row in watched.rows)]
    batches = [watcher.responses(row.version) for row in watched.rows]
    trained = [
        tokens / (now - before) if now > before else 0.0
        for tokens, (before, now) in zip(batches, pairwise(ends_s), strict=True)
    ]
    if trained:
        ends = thinned(list(zip([time(at_s) for at_s in ends_s[1:]], _rounded(trained), strict=True)), POINTS)
        drawn = {"shape": "vh"}
        rates.append(line([x for x, _ in ends], [y for _, y in ends], "trained on", "$training", line=drawn))
    stacked = []
    for lag in range(LAGS):
        held = flow.row(FIRST_LAG + lag)
        if any(held):
            name = "4 or more" if lag == LAGS - 1 else str(lag)
            look = {"stackgroup": "lags", "fillcolor": LAG_COLORS[lag]}
            stacked.append(line(at, _rounded(held), name, LAG_COLORS[lag], width=0, **look))
    batch, samples = watched.fleet.spec.batch_groups, watched.fleet.samples
    waiting = [
        line(at, _rounded(flow.row(BUFFERED)), "in the buffer", "$training", width=1.6),
        line(at, _rounded([many / samples for many in flow.row(POOLED)]), "in the pool", "$pulling", width=1.6),
    ]
    return [
        Chart(
            "throughput",
            "Throughput",
            rates,
            {"xaxis": over, "yaxis": axis("response tokens per second", rangemode="tozero")},
            "A step's rate is its response tokens over the time since the step before, drawn back over that time.",
            wide=True,
        ),
        Chart(
            "in-flight",
            "In flight, by age of the weights",
            stacked,
            {
                "xaxis": over,
                "yaxis": axis("running trajectories", rangemode="tozero"),
                "legend": {"title": {"text": "versions behind  ", "font": {"size": 12}}, "traceorder": "normal"},
            },
            "Running trajectories, by how far their replica's weights are behind the trainer's.",
        ),
        Chart(
            "waiting",
            "What waits",
            waiting,
            {"xaxis": over, "yaxis": axis("groups", rangemode="tozero")},
            f"A batch is {batch} groups. Those in the buffer wait for the trainer; trajectories in the pool, counted as "
            f"groups of {samples}, wait for a replica.",
        ),
    ]


def _heat(
    id_: str,
    title: str,
    z: Sequence[Sequence[float]],
    watched: Watched,
    loads: Series,
    time: TimeAxis,
    color: str,
    unit: str,
    note: str,
) -> Chart:
    names = list(watched.watcher.replicas)
    ends = [time(end_s) for end_s in loads.ends_s]
    tick = {"tickfont": {"size": 11, "color": "$muted"}, "outlinewidth": 0, "thickness": 10, "ticksuffix": unit}
    trace = {
        "type": "heatmap",
        "x": [0.0, *ends],
        "y": names,
        "z": [list(row) for row in z],
        "zmin": 0,
        "colorscale": [[0.0, "$idle"], [0.001, f"${color}-low"], [1.0, f"${color}-high"]],
        "colorbar": tick,
        "hovertemplate": f"%{{y}}, %{{x}} {time.unit}: %{{z}}{unit}<extra></extra>",
    }
    if unit:
        trace["zmax"] = 100
    layout = {
        "xaxis": axis(f"simulated time ({time.unit})", showgrid=False, range=_shown(watched, time)),
        "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False, "nticks": 16, "automargin": True},
    }
    height = 90 + max(LEAST_HEIGHT, min(MOST_HEIGHT, ROW_HEIGHT * len(names)))
    return Chart(id_, title, [trace], layout, note, height, wide=True)


def _shown(watched: Watched, time: TimeAxis) -> list[float]:
    """From the first work on: what comes before is start-up. Double-click shows it too."""
    flow = watched.watcher.flow
    at_work = (
        end_s
        for end_s, column in zip(flow.ends_s, flow.between(-1.0, watched.result.duration_s), strict=True)
        if any(column[FIRST_LAG:])
    )
    end_s = flow.ends_s[-1]
    begin_s = next(at_work, 0.0)
    return [time(max(0.0, begin_s - 0.02 * (end_s - begin_s))), time(end_s)]


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 1) for value in values]
