"""Charts of the system: throughput and the experience buffer."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tailrace.pipeline.run.reporting.charts import Chart, TimeAxis, axis, line, thinned
from tailrace.pipeline.run.reporting.record import Record

RATE_BINS = 160
OCCUPANCY_POINTS = 1200


def throughput_chart(record: Record, time: TimeAxis) -> Chart | None:
    """Tokens generated, as replicas report them, and tokens trained on, step by step."""
    data = []
    if record.observed.generated:
        times, rates = _rate(record.observed.generated, record.last_s)
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
    batch, limit = record.history.spec.batch_groups, record.history.open_limit
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
