"""The chart of effective training time: which share of the devices works, in windows of five minutes or less."""

from __future__ import annotations

from tailrace.pipeline.run.figures.effective_time import WINDOW_S
from tailrace.report.charts.chart import Chart, TimeAxis, axis, line
from tailrace.report.reason_words import duration, percent
from tailrace.report.record import Record

LEAST_WINDOWS, MOST_WINDOWS = 24, 600


def effective_time_chart(record: Record, time: TimeAxis) -> Chart | None:
    """Both figures over time; None where nothing failed, since nothing recovers then, or no time has passed.

    A run that is too short for windows of five minutes has shorter ones, and a very long one longer ones.
    """
    if not (record.folds.outages.all and record.last_s):
        return None
    window_s = max(min(WINDOW_S, record.last_s / LEAST_WINDOWS), record.last_s / MOST_WINDOWS)
    found = record.folds.effective_time.figures(window_s)
    if not found.sliding:
        return None
    at = [time(end_s) for end_s, _, _ in found.sliding]
    rows = (
        ("with work done again", [paper for _, paper, _ in found.sliding], found.ettr, "$generating"),
        ("without", [strict for _, _, strict in found.sliding], found.ettr_strict, "$training"),
    )
    data = [
        line(at, [round(value, 4) for value in values], f"{name} ({percent(whole)})", color, line={"shape": "vh"})
        for name, values, whole, color in rows
    ]
    layout = {
        "xaxis": axis(f"run's clock ({time.unit})", range=[time(at_s) for at_s in record.shown_s]),
        "yaxis": axis("share of devices", range=[0, 1.05], tickformat=".0%"),
    }
    note = (
        f"Effective training time in windows of {duration(window_s)}; in brackets, over the run. The share of devices whose "
        "role does not recover while anything computes; 0 while all wait."
    )
    return Chart("effective-time", "Effective training time", data, layout, note, wide=True)
