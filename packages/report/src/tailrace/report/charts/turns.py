"""Charts of turns: how many a trajectory has, how long environments take, and where trajectories are meanwhile."""

from __future__ import annotations

from collections import Counter

from tailrace.report.charts.chart import Chart, TimeAxis, axis, bars, line
from tailrace.report.fold.turns import Latencies, Where
from tailrace.report.reason_words import percent
from tailrace.report.record import Record

POINTS, SPELLS = 400, 60
_MOST_BARS = 40
_WIDE = 20.0  # where latencies differ more than this, their axis has a log scale
_LEAST_SHARE = 0.0005  # what would be shown as 0.0 % is left out
_PLACES = {
    Where.REPLICA: ("on a replica", "$generating"),
    Where.ENVIRONMENT: ("an environment answers", "$training"),
    Where.SESSION: ("waits for a session", "$pulling"),
    Where.POOL: ("waits for a replica", "$down"),
}


def turn_charts(record: Record, time: TimeAxis) -> list[Chart]:
    """Turns of each trajectory, latency of environments and where trajectories were; none where no turn ended."""
    if not record.folds.run.counts.turns:
        return []
    charts = [
        _where(record, time),
        _lengths(record),
        _latency(record.folds.turns.latencies, record.shown_s, time),
    ]
    return [chart for chart in charts if chart is not None]


def _where(record: Record, time: TimeAxis) -> Chart | None:
    turns, spec = record.folds.turns, record.folds.run.spec
    counts, shares = turns.counts.coarser(POINTS), turns.shares()
    if not shares:
        return None
    at, data = [time(end_s) for end_s in counts.ends_s], []
    for where, (name, color) in _PLACES.items():
        if shares[where] >= _LEAST_SHARE:
            look = {"stackgroup": "where", "fillcolor": color}
            held = [round(value, 1) for value in counts.row(where)]
            data.append(line(at, held, f"{name} ({percent(shares[where])})", color, width=0, **look))
    layout = {
        "xaxis": axis(f"run's clock ({time.unit})", range=[time(at_s) for at_s in record.shown_s]),
        "yaxis": axis("unfinished trajectories", rangemode="tozero"),
        "legend": {"traceorder": "normal"},
    }
    note = "In brackets: the share of the trajectories' time. One that is not on a replica takes no place in a decode batch."
    if shares[Where.SESSION] >= _LEAST_SHARE and spec.environment_sessions is not None:
        most = spec.environments * spec.environment_sessions
        note += f" Environments work at {most:,} sessions at most, and the others wait for one (environment.sessions)."
    return Chart("turns-where", "Where trajectories were", data, layout, note, wide=True)


def _lengths(record: Record) -> Chart | None:
    counts = Counter(record.folds.run.counts.turns_of_each)
    ended = counts.total()
    if not ended:
        return None
    places = list(range(1, min(max(counts), _MOST_BARS) + 1))
    heights = [counts[turns] for turns in places]
    more = ended - sum(heights)
    names = [str(turns) for turns in places]
    if more:
        names, heights = [*names, f"over {_MOST_BARS}"], [*heights, more]
    data = [
        bars(
            names, heights, "trajectories", "$generating", hovertemplate="%{x} turns: %{y} trajectories<extra></extra>"
        )
    ]
    layout = {
        "xaxis": axis("turns", type="category"),
        "yaxis": axis("trajectories", rangemode="tozero"),
        "showlegend": False,
    }
    mean = sum(turns * count for turns, count in counts.items()) / ended
    note = f"Of {ended:,} responses that ended, whatever became of their groups: {mean:.2f} turns on average."
    return Chart("turns", "Turns of a response", data, layout, note)


def _latency(latencies: Latencies, shown_s: tuple[float, float], time: TimeAxis) -> Chart | None:
    if not latencies.total_s:
        return None
    spells = latencies.spells(SPELLS)
    at = [time((spell.begin_s + spell.end_s) / 2) for spell in spells]
    low, high = ([spell.quantile(share) for spell in spells] for share in (0.5, 0.99))
    look = {"mode": "lines+markers", "marker": {"size": 5}}
    data = [
        line(at, [round(value, 5) for value in values], name, color, width=1.6, **look)
        for name, values, color in (("p99", high, "$control-4"), ("p50", low, "$control-1"))
    ]
    wide = max(high) > _WIDE * min(low)
    scale = {"type": "log", "dtick": 1} if wide else {"rangemode": "tozero"}
    layout = {
        "xaxis": axis(f"run's clock ({time.unit})", range=[time(at_s) for at_s in shown_s]),
        "yaxis": axis(f"seconds{', log scale' if wide else ''}", **scale),
    }
    p50, p99 = latencies.quantile(0.5), latencies.quantile(0.99)
    note = (
        f"{latencies.count:,} answers: p50 {p50:.2g} s, p99 {p99:.2g} s, mean {latencies.mean_s:.2g} s. Without the time "
        "that a turn waited for a session."
    )
    return Chart("turns-latency", "How long an environment takes to answer", data, layout, note)
