"""Charts of the system: throughput and the experience buffer."""

from __future__ import annotations

from itertools import pairwise

from tailrace.report.charts.chart import Chart, TimeAxis, axis, line, thinned
from tailrace.report.fold.loads import GENERATED
from tailrace.report.record import Record

RATE_BINS = 160
OCCUPANCY_POINTS = 1200


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
        data.append(line([time(at) for at, _ in ends[1:]], rates, "trained on", "$training", line={"shape": "hvh"}))
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
    batch, limit = record.folds.history.spec.batch_groups, record.folds.history.open_limit
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
