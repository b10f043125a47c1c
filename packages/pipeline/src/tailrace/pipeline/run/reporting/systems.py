"""Charts of the system: staleness, response lengths, throughput, and the experience buffer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from tailrace.pipeline.run.metrics import percentile
from tailrace.pipeline.run.reporting.charts import Chart, TimeAxis, axis, bars, line, step_axis, thinned
from tailrace.pipeline.run.reporting.record import Record

RATE_BINS = 160
OCCUPANCY_POINTS = 1200
LENGTH_BINS = 64


def staleness_charts(record: Record) -> list[Chart]:
    """Staleness at completion and at consumption, and by step."""
    batches = record.batches
    if not batches:
        return []
    completed = Counter(lag for batch in batches for lag in batch.at_completion)
    consumed = Counter(lag for batch in batches for lag in batch.at_consumption)
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
    histogram = Chart("staleness", "Staleness", data, layout, note)
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
    layout = {"xaxis": step_axis(len(record.batches)), "yaxis": axis("versions", rangemode="tozero")}
    return [histogram, Chart("staleness-steps", "Staleness by step", per_step, layout)]


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
    cut = sum(length >= limit for length in lengths) / len(lengths)
    ratio = f"p99 is {p99 / p50:.1f} times p50; " if p50 else ""
    note = f"{ratio}{cut:.1%} of the responses reach the limit of {limit} tokens."
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


def throughput_chart(record: Record, time: TimeAxis) -> Chart | None:
    """Tokens generated, as replicas report them, and tokens trained on, step by step."""
    data = []
    if record.observed.generated:
        times, rates = _rate(record.observed.generated, record.observed.last_s)
        data.append(
            {
                **line([time(at) for at in times], rates, "generated", "$generating", width=1.2),
                "fill": "tozeroy",
                "fillcolor": "$generating-band",
            }
        )
    ends = [(record.first_work_s, 0), *((b.ended_s or 0.0, sum(b.lengths)) for b in record.batches)]
    rates = [tokens / (now - before) if now > before else 0.0 for (before, _), (now, tokens) in pairwise(ends)]
    if rates:
        data.append(line([time(at) for at, _ in ends[1:]], rates, "trained on", "$training", line={"shape": "hvh"}))
    if not data:
        return None
    layout = {"xaxis": _time_axis(record, time), "yaxis": axis("response tokens per second", rangemode="tozero")}
    note = "Generation includes evaluations. A step's rate is its response tokens over the time since the step before."
    return Chart("throughput", "Throughput", data, layout, note)


def buffer_chart(record: Record, time: TimeAxis) -> Chart | None:
    """Groups that wait for the trainer, and groups that are being generated."""
    points = thinned(record.observed.occupancy, OCCUPANCY_POINTS)
    if len(points) < 2:
        return None
    at = [time(now) for now, _, _ in points]
    data = [
        line(at, [buffered for _, buffered, _ in points], "complete", "$training", line={"shape": "hv"}, width=1.6),
        line(
            at, [making for _, _, making in points], "being generated", "$generating", line={"shape": "hv"}, width=1.2
        ),
    ]
    batch, limit = record.config.pipeline.prompts_per_step, record.config.pipeline.buffer_prompts
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


def _rate(samples: Sequence[tuple[float, float, float]], end_s: float) -> tuple[list[float], list[float]]:
    """Rates of several replicas over intervals, added up in bins."""
    begin = min(since for since, _, _ in samples)
    width = max((end_s - begin) / RATE_BINS, 1e-6)
    tokens = [0.0] * (RATE_BINS + 1)
    for since, until, rate in samples:
        at = since
        while at < until:
            index = min(RATE_BINS, int((at - begin) / width))
            edge = min(until, begin + (index + 1) * width) if index < RATE_BINS else until
            if edge <= at:
                break
            tokens[index] += rate * (edge - at)
            at = edge
    return [begin + (index + 0.5) * width for index in range(RATE_BINS)], [
        count / width for count in tokens[:RATE_BINS]
    ]


def _time_axis(record: Record, time: TimeAxis) -> dict[str, object]:
    return axis(f"time on the run's clock ({time.unit})", range=[time(at) for at in record.shown_s])


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
