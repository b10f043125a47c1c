"""Charts of how full replicas were, what ran on them and how old its weights were, of throughput and the buffer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tailrace.report.charts.chart import LAG_COLORS, Chart, TimeAxis, axis, line, thinned
from tailrace.report.fold.loads import FIRST_LAG, GENERATED, LAGS, Loads
from tailrace.report.record import Record

RATE_BINS = 160
OCCUPANCY_POINTS = 1200
HEAT_COLUMNS, POINTS = 300, 400
ROW_HEIGHT, LEAST_HEIGHT, MOST_HEIGHT = 14, 220, 620


def heat_charts(loads: Loads, shown_s: tuple[float, float], time: TimeAxis) -> list[Chart]:
    """Running trajectories and KV cache in use, of each watched replica over time."""
    ran, held = loads.running.coarser(HEAT_COLUMNS), loads.kv.coarser(HEAT_COLUMNS)
    if not ran.ends_s:
        return []
    count = len(loads.replicas)
    running = [[_shown(value) for value in ran.row(place)] for place in range(count)]
    kv = [[round(100 * value) for value in held.row(place)] for place in range(count)]
    of = f"{count} of the {loads.of:,} replicas, evenly chosen. " if count < loads.of else ""
    note = f"{of}One row per replica. Pink: nothing runs."
    ends = [time(end_s) for end_s in ran.ends_s]

    ran_scale: list[list[Any]] = [[0.0, "$idle"], [1e-6, "$heat-low"], [1.0, "$heat-high"]]
    kv_scale: list[list[Any]] = [[0.0, "$fill-low"], [1.0, "$fill-high"]]

    def heat(id_: str, title: str, z: Sequence[Sequence[float]], scale: list[list[Any]], unit: str, note: str) -> Chart:
        tick = {"tickfont": {"size": 11, "color": "$muted"}, "outlinewidth": 0, "thickness": 10, "ticksuffix": unit}
        trace = {
            "type": "heatmap",
            "x": [0.0, *ends],
            "y": list(loads.replicas),
            "z": [list(row) for row in z],
            "zmin": 0,
            "colorscale": scale,
            "colorbar": tick,
            "hovertemplate": f"%{{y}}, %{{x}} {time.unit}: %{{z}}{unit}<extra></extra>",
            **({"zmax": 100} if unit else {}),
        }
        layout = {
            "xaxis": axis(f"time ({time.unit})", showgrid=False, range=[time(at) for at in shown_s]),
            "yaxis": {"type": "category", "autorange": "reversed", "showgrid": False, "nticks": 16, "automargin": True},
        }
        height = 90 + max(LEAST_HEIGHT, min(MOST_HEIGHT, ROW_HEIGHT * count))
        return Chart(id_, title, [trace], layout, note, height, wide=True)

    return [
        heat("running", "Running trajectories of each replica", running, ran_scale, "", note),
        heat(
            "kv",
            "KV cache in use on each replica",
            kv,
            kv_scale,
            " %",
            f"{of}As its snapshots say: each holds until the next, or until nothing runs.",
        ),
    ]


def ages_chart(loads: Loads, shown_s: tuple[float, float], time: TimeAxis) -> Chart | None:
    """Running trajectories by the age of the weights that generate them."""
    flow = loads.flow.coarser(POINTS)
    at = [time(end_s) for end_s in flow.ends_s]
    data = []
    for lag in range(LAGS):
        held = flow.row(FIRST_LAG + lag)
        if any(held):
            name = "4 or more" if lag == LAGS - 1 else str(lag)
            look = {"stackgroup": "lags", "fillcolor": LAG_COLORS[lag]}
            data.append(line(at, [round(value, 1) for value in held], name, LAG_COLORS[lag], width=0, **look))
    if not data:
        return None
    layout = {
        "xaxis": axis(f"time ({time.unit})", range=[time(at_s) for at_s in shown_s]),
        "yaxis": axis("running trajectories", rangemode="tozero"),
        "legend": {"title": {"text": "versions behind  ", "font": {"size": 12}}, "traceorder": "normal"},
    }
    note = "Running trajectories, by how far their replica's weights are behind the trainer's."
    return Chart("in-flight", "In flight, by age of the weights", data, layout, note)


def _shown(running: float) -> float:
    """A mean of running trajectories, rounded: little is no idleness."""
    return max(0.1, round(running, 1)) if running else 0.0


def throughput_chart(record: Record, time: TimeAxis) -> Chart | None:
    """Tokens generated, as replicas report them, and tokens trained on, step by step."""
    data = []
    flow = record.folds.loads.flow.coarser(RATE_BINS)
    if any(flow.row(GENERATED)):
        at, rates = [time(end_s) for end_s in flow.ends_s], [round(rate, 1) for rate in flow.row(GENERATED)]
        generated = line(at, rates, "generated", "$generating", width=1.2)
        data.append({**generated, "fill": "tozeroy", "fillcolor": "$generating-band"})
    ends = [(record.first_work_s, 0), *((b.ended_s, sum(b.lengths)) for b in record.batches)]
    rates = [tokens / (now - before) if now > before else 0.0 for (before, _), (now, tokens) in pairwise(ends)]
    if rates:
        # A rate is that of the time until its step: drawn back to the step before, the first one to the first work.
        at, steady = [time(at_s) for at_s, _ in ends], [rates[0], *rates]
        data.append(line(at, steady, "trained on", "$training", line={"shape": "vh"}))
    if not data:
        return None
    layout = {"xaxis": _time_axis(record, time), "yaxis": axis("response tokens per second", rangemode="tozero")}
    note = "Generation includes evaluations. A step's rate is its response tokens over the time since the step before."
    return Chart("throughput", "Throughput", data, layout, note)


def buffer_chart(record: Record, time: TimeAxis) -> Chart | None:
    """Groups that wait for the trainer, and groups that are being generated."""
    points = thinned(record.folds.batches.occupancy, OCCUPANCY_POINTS)
    if len(points) < 2:
        return None
    at = [time(now) for now, _, _ in points]
    data = [
        line(at, [buffered for _, buffered, _ in points], "complete", "$training", line={"shape": "hv"}, width=1.6),
        line(
            at, [making for _, _, making in points], "being generated", "$generating", line={"shape": "hv"}, width=1.2
        ),
    ]
    batch, limit = record.folds.run.spec.batch_groups, record.folds.run.most_open
    layout = {
        "xaxis": _time_axis(record, time),
        "yaxis": axis("groups", rangemode="tozero"),
        "shapes": [_horizontal(batch)],
    }
    return Chart(
        "buffer",
        "Experience buffer",
        data,
        layout,
        f"A batch is {batch} groups; the two together hold {limit} at most.",
    )


def _time_axis(record: Record, time: TimeAxis) -> dict[str, object]:
    return axis(f"run's clock ({time.unit})", range=[time(at) for at in record.shown_s])


def _horizontal(y: float) -> dict[str, object]:
    return {
        "type": "line",
        "y0": y,
        "y1": y,
        "x0": 0,
        "x1": 1,
        "xref": "paper",
        "line": {"color": "$muted", "width": 1, "dash": "dot"},
    }
