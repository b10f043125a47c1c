"""The chart of effective training time, from a simulated run whose members die."""

from tailrace.report.charts.chart import TimeAxis
from tailrace.report.charts.effective_time import effective_time_chart
from tailrace.report.reason_words import percent
from tailrace.report.record import read_record
from tailrace.report.run_page import render

from .conftest import a_run, configured, folded, simulated


def record(directory, **changes):
    config = configured(steps=4, **changes)
    found, _ = a_run(directory, config)
    return read_record(found)


def test_a_run_whose_trainer_dies_has_a_chart_with_both_figures(tmp_path):
    found = record(tmp_path / "run", faults=["trainer@step2", "replica:r1@step3"])
    chart = effective_time_chart(found, TimeAxis.for_length(found.last_s))
    figures = found.folds.effective_time.figures()
    assert 0 < figures.ettr_strict <= figures.ettr < 1
    names = [trace["name"] for trace in chart.data]
    assert names == [
        f"with work done again ({percent(figures.ettr)})",
        f"without ({percent(figures.ettr_strict)})",
    ]
    assert all(0 <= value <= 1 for trace in chart.data for value in trace["y"])
    assert '"effective-time"' in render(found)


def test_a_run_in_which_nothing_fails_has_none(tmp_path):
    found = record(tmp_path / "run")
    assert effective_time_chart(found, TimeAxis.for_length(found.last_s)) is None
    assert "effective-time" not in render(found)


def test_folded_beside_a_simulation_or_from_its_log_it_is_the_same(tmp_path):
    faults = ["trainer@step1"]
    whole = folded(simulated(configured(steps=4, faults=faults))).effective_time.figures()
    assert 0 < whole.ettr < 1
    assert whole == record(tmp_path / "run", faults=faults).folds.effective_time.figures()
