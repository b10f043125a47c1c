"""Response lengths: of what was trained on, and beside them of everything that was offered, so that starvation shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tailrace.contracts import Why
from tailrace.pipeline.run.figures.batches import percentile
from tailrace.report.charts.chart import Chart, Trace, axis, bars, line, step_axis, thinned
from tailrace.report.html.page import Table
from tailrace.report.reason_words import end
from tailrace.report.record import Record

LENGTH_BINS = 64
_TICKS = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
CURVE_POINTS = 400


def length_charts(record: Record) -> list[Chart]:
    """Response lengths of what was trained on, all together and by step."""
    lengths = sorted(length for batch in record.batches for length in batch.lengths)
    if not lengths:
        return []
    p50, p99 = percentile(lengths, 0.5), percentile(lengths, 0.99)
    width = max(1, -(-(lengths[-1] + 1) // LENGTH_BINS))
    counts = Counter(length // width for length in lengths)
    filled = sorted(counts)
    hover = [f"{b * width} to {b * width + width - 1} tokens: {counts[b]}" for b in filled]
    data = [
        {
            **bars(
                [b * width + (width - 1) / 2 for b in filled],
                [counts[b] for b in filled],
                "trajectories",
                "$generating",
            ),
            "width": width * 0.92,
            "hovertext": hover,
            "hoverinfo": "text",
        }
    ]
    layout = {
        "xaxis": axis("response tokens"),
        "yaxis": axis("trajectories", type="log", dtick=1),
        "showlegend": False,
        "shapes": [_vertical(p50), _vertical(p99)],
        "annotations": [_label(p50, f"p50 {p50:.0f}", "right"), _label(p99, f"p99 {p99:.0f}", "left")],
    }
    limit = record.config.rollout.max_tokens
    truncated = sum(record.folds.batches.truncated[batch.version] for batch in record.batches)
    ratio = f"p99 is {p99 / p50:.1f} times p50; " if p50 else ""
    limits = "with what environments answer, or the most turns" if record.folds.run.counts.turns else "or the context"
    note = f"{ratio}{truncated / len(lengths):.1%} of the responses were ended by a limit: {limit} tokens, {limits}."
    histogram = Chart("lengths", "Response length", data, layout, note)
    steps = list(range(1, len(record.batches) + 1))
    ordered = [sorted(batch.lengths) for batch in record.batches]
    by_step = [
        line(steps, [percentile(row, 0.99) for row in ordered], "p99", "$control-4", width=1.6),
        line(steps, [sum(row) / len(row) for row in ordered], "mean", "$generating"),
        line(steps, [percentile(row, 0.5) for row in ordered], "p50", "$control-1", width=1.6),
    ]
    layout = {"xaxis": step_axis(len(record.batches)), "yaxis": axis("response tokens", rangemode="tozero")}
    return [histogram, Chart("lengths-steps", "Response length by step", by_step, layout)]


def offered(record: Record) -> list[int]:
    """Response tokens of every training trajectory that ended by itself, whatever became of its group."""
    settled = [length for batch in record.batches for length in batch.lengths]
    settled += [length for lengths in record.folds.offcuts.finished.values() for length in lengths]
    return settled + record.folds.run.unsettled()


def selection_chart(record: Record) -> Chart | None:
    """Cumulative distributions of what was offered, trained on and filtered for no signal."""
    trained = [length for batch in record.batches for length in batch.lengths]
    if not trained:
        return None
    everything, unused = offered(record), record.folds.offcuts.finished.get(Why.NO_SIGNAL, [])
    data = [
        _cumulative(everything, "offered", "$control-1", width=5),
        _cumulative(trained, "trained on", "$training", width=2),
    ]
    if unused:
        data.append(_cumulative(unused, "filtered for no signal", "$pulling", width=1.6, dash="dot"))
    layout = {
        "xaxis": axis("response tokens, log scale", type="log", tickvals=_TICKS, minor={"showgrid": False}),
        "yaxis": axis("share that is no longer", tickformat=".0%", range=[0, 1.02]),
    }
    useful = Counter(everything) - Counter(unused)
    mean, before = sum(trained) / len(trained), sum(n * count for n, count in useful.items()) / max(useful.total(), 1)
    note = (
        "Where the curve of what was trained on lies left of what was offered, long responses were trained on less. "
        f"Leaving out what had no signal, the mean is {before:.1f} tokens offered and {mean:.1f} trained on."
    )
    return Chart("lengths-offered", "Lengths trained on beside lengths offered", data, layout, note, height=340)


def selection_table(record: Record) -> Table:
    """The same in figures, with what was dropped and why."""
    rows = [
        _lengths_row("offered: all that finished", offered(record)),
        _lengths_row("trained on", [length for batch in record.batches for length in batch.lengths]),
    ]
    rows += [_lengths_row(f"dropped: {end(why)}", lengths) for why, lengths in record.folds.offcuts.finished.items()]
    still = len(record.folds.run.unsettled())
    if still:
        rows.append(["finished, group not settled yet", f"{still:,}", *[""] * 5])
    unfinished = record.folds.offcuts.unfinished
    known = [tokens for tokens in unfinished if tokens]
    rows.append(_lengths_row("aborted unfinished", known, len(unfinished)))
    note = (
        "Offered are all training responses that ended, whatever became of their group. Filtering for no signal drops "
        "prompts that are always or never solved: it changes lengths through difficulty, not through staleness. What is "
        "dropped as surplus, as too old, or aborted unfinished is where a bound or redundancy could starve long responses."
    )
    if unfinished:
        note += f" Of those aborted unfinished, {len(known):,} had been interrupted before: their tokens so far are counted."
    return Table(["response tokens", "#count", "#mean", "#p50", "#p90", "#p99", "#max"], rows, note)


def _lengths_row(name: str, lengths: list[int], count: int | None = None) -> list[str]:
    """One row; `count` where not every length is known."""
    many = f"{len(lengths) if count is None else count:,}"
    if not lengths:
        return [name, many, *[""] * 5]
    ordered = sorted(lengths)
    shares = [f"{percentile(ordered, share):.0f}" for share in (0.5, 0.9, 0.99)]
    return [name, many, f"{sum(ordered) / len(ordered):.1f}", *shares, str(ordered[-1])]


def _cumulative(lengths: Iterable[int], name: str, color: str, *, width: float, dash: str = "solid") -> Trace:
    counts = Counter(lengths)
    total, below = sum(counts.values()), 0
    points: list[tuple[int, float]] = []
    for length in sorted(counts):
        below += counts[length]
        points.append((max(length, 1), below / total))
    points = thinned(points, CURVE_POINTS)
    hover = f"{name}: %{{y:.1%}} have at most %{{x}} tokens<extra></extra>"
    x, y = [length for length, _ in points], [share for _, share in points]
    drawn = {"shape": "hv", "dash": dash}
    return line(x, y, f"{name} ({total:,})", color, width=width, line=drawn, hovertemplate=hover)


def _vertical(x: float) -> dict[str, object]:
    return {
        "type": "line",
        "x0": x,
        "x1": x,
        "y0": 0,
        "y1": 1,
        "yref": "paper",
        "line": {"color": "$ink", "width": 1, "dash": "dot"},
    }


def _label(x: float, text: str, anchor: str) -> dict[str, object]:
    return {
        "x": x,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "xanchor": anchor,
        "text": text,
        "showarrow": False,
        "font": {"size": 11},
    }
