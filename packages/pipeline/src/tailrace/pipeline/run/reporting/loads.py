"""How full replicas were, what they generated, and how old the weights were that they did it with, over time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tailrace import contracts as c
from tailrace.pipeline.controller.members import REPLICA
from tailrace.pipeline.run.reporting.charts import LAG_COLORS, Chart, TimeAxis, axis, line
from tailrace.pipeline.run.reporting.series import Series

LAGS = 5  # running by versions behind: 0, 1, 2, 3, 4 or more
GENERATED, FIRST_LAG = 0, 1
HEAT_COLUMNS, POINTS = 300, 400
ROW_HEIGHT, LEAST_HEIGHT, MOST_HEIGHT = 14, 220, 620


class Loads:
    """Observes a log: what replicas said of their load, sampled at its ticks.

    `series` holds running trajectories and then shares of KV cache in use of the watched replicas. `flow` holds response tokens
    per second of all, and running trajectories by versions behind the trainer, scaled up from those watched to all.
    """

    def __init__(self) -> None:
        self.replicas: tuple[str, ...] = ()
        self.of = 0
        self.series, self.flow = Series(0), Series(FIRST_LAG + LAGS)
        self._seen: dict[str, c.Snapshot | None] = {}
        self._told_s: dict[str, float] = {}
        self._tokens, self._sampled_s = 0.0, 0.0

    def watch(self, replicas: Sequence[str], of: int) -> None:
        """Look at these replicas, out of so many."""
        self.replicas, self.of = tuple(replicas), of
        self._seen, self.series = dict.fromkeys(replicas), Series(2 * len(replicas))

    def observe(self, now: float, events: Sequence[c.Event], version: int) -> None:
        """One instant, at which the trainer holds a version."""
        for event in events:
            kind = type(event)
            if kind is c.Snapshot:
                assert isinstance(event, c.Snapshot)
                since = self._told_s.get(event.replica, now)
                self._tokens += event.tokens_per_s * (now - since)
                self._told_s[event.replica] = now
                if event.replica in self._seen:
                    self._seen[event.replica] = event
            elif kind is c.Tick and self.replicas:
                self._sample(now, version)
            elif isinstance(event, c.Up) and event.role == REPLICA:
                self._told_s[event.id] = now
                if event.id in self._seen:
                    self._seen[event.id] = None

    def close(self) -> None:
        """The log ends here."""
        self.series.close()
        self.flow.close()

    def generated(self, begin_s: float, end_s: float) -> float:
        """Response tokens that were generated between two moments."""
        ends_s = [0.0, *self.flow.ends_s]
        overlaps = [max(0.0, min(until, end_s) - max(since, begin_s)) for since, until in pairwise(ends_s)]
        return sum(rate * length for rate, length in zip(self.flow.row(GENERATED), overlaps, strict=True))

    def _sample(self, now: float, version: int) -> None:
        seen = [self._seen[name] for name in self.replicas]
        running = [0 if shot is None else shot.running for shot in seen]
        self.series.add(now, [*running, *(0.0 if shot is None else shot.kv for shot in seen)])
        elapsed_s = now - self._sampled_s
        flow = [self._tokens / elapsed_s if elapsed_s else 0.0, *[0.0] * LAGS]
        self._tokens, self._sampled_s = 0.0, now
        for shot, count in zip(seen, running, strict=True):
            if count and shot is not None and shot.version is not None:
                behind = min(LAGS - 1, max(0, version - shot.version))
                flow[FIRST_LAG + behind] += count * self.of / len(self.replicas)
        self.flow.add(now, flow)


def heat_charts(loads: Loads, shown_s: tuple[float, float], time: TimeAxis) -> list[Chart]:
    """Running trajectories and KV cache in use, of each watched replica over time."""
    series = loads.series.coarser(HEAT_COLUMNS)
    if not series.ends_s:
        return []
    count = len(loads.replicas)
    rows = [series.row(place) for place in range(2 * count)]
    running = [[round(value, 1) for value in row] for row in rows[:count]]
    kv = [[round(100 * value) for value in row] for row in rows[count:]]
    of = f"{count} of the {loads.of:,} replicas, evenly chosen. " if count < loads.of else ""
    note = f"{of}One row per replica. In the colour of idleness: nothing runs."
    ends = [time(end_s) for end_s in series.ends_s]

    def heat(id_: str, title: str, z: Sequence[Sequence[float]], color: str, unit: str, note: str) -> Chart:
        tick = {"tickfont": {"size": 11, "color": "$muted"}, "outlinewidth": 0, "thickness": 10, "ticksuffix": unit}
        trace = {
            "type": "heatmap",
            "x": [0.0, *ends],
            "y": list(loads.replicas),
            "z": [list(row) for row in z],
            "zmin": 0,
            "colorscale": [[0.0, "$idle"], [0.001, f"${color}-low"], [1.0, f"${color}-high"]],
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
        heat("running", "Running trajectories of each replica", running, "heat", "", note),
        heat("kv", "KV cache in use on each replica", kv, "fill", " %", of.strip()),
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
