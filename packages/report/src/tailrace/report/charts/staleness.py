"""Charts of staleness: of everything that was trained on, by step, and batch by batch against the bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tailrace.report.charts.chart import LAG_COLORS, Chart, axis, bars, line, step_axis
from tailrace.report.record import Record

SHADED = "$training"  # one colour in shades where there are more values
MOST_SHADES = 12


def staleness_charts(record: Record) -> list[Chart]:
    """Staleness at completion and at consumption, by step, and its distribution in each batch."""
    return [] if not record.batches else [_histogram(record), _by_step(record), _by_batch(record)]


def staleness_in_words(record: Record) -> str:
    """Mean, maximum and bound of what was trained on, behind the warm-up of a simulated run."""
    lags = [lag for batch in record.measured for lag in batch.at_consumption]
    bound = record.folds.run.bound
    guaranteed = "no bound" if bound is None else f"bound {bound}"
    return f"mean {sum(lags) / len(lags):.2f}, max {max(lags)}, {guaranteed}" if lags else guaranteed


def _histogram(record: Record) -> Chart:
    completed = Counter(lag for batch in record.measured for lag in batch.at_completion)
    consumed = Counter(lag for batch in record.measured for lag in batch.at_consumption)
    lags = list(range(max([*completed, *consumed]) + 1))
    total = sum(consumed.values())
    data = [
        bars(lags, [completed[lag] / total for lag in lags], "at completion", "$pulling"),
        bars(lags, [consumed[lag] / total for lag in lags], "at consumption", "$training"),
    ]
    mean = sum(lag * count for lag, count in consumed.items()) / total
    layout = {
        "xaxis": axis("versions behind the trainer", dtick=max(1, len(lags) // 12)),
        "yaxis": axis("share of trajectories", tickformat=".0%"),
        "barmode": "group",
    }
    note = f"Trained on {mean:.2f} versions late on average, at most {max(consumed)}."
    return Chart("staleness", "Staleness", data, layout, note)


def _by_step(record: Record) -> Chart:
    batches = record.batches
    steps = list(range(1, len(batches) + 1))
    per_step = [
        line(steps, [max(b.at_consumption) for b in batches], "maximum", "$control-4", width=1.4, line={"shape": "hv"}),
        line(steps, [sum(b.at_consumption) / len(b.at_consumption) for b in batches], "mean", "$training"),
        line(
            steps,
            [sum(b.at_completion) / len(b.at_completion) for b in batches],
            "mean at completion",
            "$pulling",
            width=1.6,
        ),
    ]
    layout = {"xaxis": step_axis(len(batches)), "yaxis": axis("versions", rangemode="tozero")}
    return Chart("staleness-steps", "Staleness by step", per_step, layout)


def _by_batch(record: Record) -> Chart:
    batches = [Counter(batch.at_consumption) for batch in record.batches]
    words = staleness_in_words(record)
    of = "All that was trained on" if record.directory.simulated is None else "Behind the warm-up"
    note = f"Staleness: the trainer's version less the oldest in a trajectory. {of}: {words}."
    against = _against(record, max(max(batch) for batch in batches))
    return batches_chart(batches, f"Staleness of each batch{against}", note)


def batches_chart(batches: Sequence[Counter[int]], title: str, note: str) -> Chart:
    """Each batch that was trained on, split by staleness (StaleFlow, figure 18). No batch may be empty."""
    steps = list(range(1, len(batches) + 1))
    top = max(max(batch) for batch in batches)
    width = -(-(top + 1) // MOST_SHADES)
    data = []
    for low in range(0, top + 1, width):
        high = min(low + width - 1, top)
        counts = [sum(count for lag, count in batch.items() if low <= lag <= high) for batch in batches]
        shares = [count / batch.total() for count, batch in zip(counts, batches, strict=True)]
        name = str(low) if low == high else f"{low} to {high}"
        hover = f"step %{{x}}, staleness {name}: %{{customdata:,}} trajectories, %{{y:.1%}}<extra></extra>"
        few = top < len(LAG_COLORS)
        look = {"opacity": 1.0 if few else 0.12 + 0.88 * high / top, "customdata": counts, "hovertemplate": hover}
        data.append(bars(steps, shares, name, LAG_COLORS[low] if few else SHADED, **look))
    layout = {
        "xaxis": step_axis(len(steps)),
        "yaxis": axis("share of the batch", tickformat=".0%", range=[0, 1]),
        "barmode": "stack",
        "legend": {"title": {"text": "behind  "}, "traceorder": "normal"},
    }
    return Chart("staleness-batches", title, data, layout, note, wide=True)


def _against(record: Record, top: int) -> str:
    bound = record.folds.run.bound
    if bound is None:
        return ""
    return f" (bound {bound}: {'none above it' if top <= bound else f'exceeded, found {top}'})"
