"""``report.html``: a run to look at, in one file that needs no network.

config.json  events.jsonl ──fold──► Record ──► charts, tables, words ──► template ──► report.html
metrics.jsonl  controls.jsonl  summary.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tailrace.contracts import shown
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.figures.results import MeasuredAnswers, Results
from tailrace.pipeline.run.prompts.reading import treated_rows
from tailrace.report import run_tables
from tailrace.report.charts import learning, lengths, loads, rounds, staleness, turns
from tailrace.report.charts.chart import Chart, TimeAxis
from tailrace.report.charts.effective_time import effective_time_chart
from tailrace.report.charts.timeline import timeline_chart
from tailrace.report.figures.held_out import gain, results, reward_alone, said
from tailrace.report.figures.prompts import PromptFates, failures
from tailrace.report.figures.system import utilisation
from tailrace.report.figures.verdict import answers, limit, without_signal
from tailrace.report.fold.interruptions import MarkKind
from tailrace.report.html.page import Table, render_page, write_page
from tailrace.report.reason_words import changes_in_words, duration
from tailrace.report.record import SIMULATED, Record, facts_of, read_record
from tailrace.report.samples import samples


def write_report(directory: RunDirectory, record: Record | None = None) -> Path:
    """Write the report of a run, finished or not; returns its path.

    Args:
        record: what the report shows; read from the run's files if None.

    Raises:
        RunDirectoryError, ConfigError: a file of the run is damaged.
    """
    return write_page(directory.report, render(read_record(directory) if record is None else record))


def render(record: Record) -> str:
    """The report as HTML."""
    simulated = record.directory.simulated is not None  # nothing is learnt there, and nothing said
    measured = results(record)
    time = TimeAxis.for_length(record.last_s)
    used = utilisation(record.folds.timeline.spans, *record.window_s)
    groups = _charts(record, measured, time)
    return render_page(
        "report.html.jinja",
        title=shown(f"{record.config.app}, {record.directory.root.name}"),
        simulated=simulated,
        headline=_headline(record, measured, simulated=simulated),
        notes=[*filter(None, [reward_alone(measured)]), *_notes(record)],
        facts=run_tables.facts(record),
        charts=[chart for group in groups.values() for chart in group],
        groups=groups,
        results=run_tables.results_table(measured),
        utilisation=run_tables.utilisation_table(used),
        bubbles=run_tables.bubble_table(used),
        window=record.window_s,
        prompts=str(PromptFates.of(record.folds.run)),
        selection=lengths.selection_table(record),
        rounds=run_tables.round_table(record),
        sessions=run_tables.session_table(record),
        repacks=run_tables.repack_table(record),
        interruptions=run_tables.interruption_table(record),
        interrupts=record.folds.run.mixes_versions,
        loans=run_tables.loan_table(record.folds.came_and_went),
        faults=run_tables.fault_table(record),
        versions=run_tables.version_table(record),
        figures=Table(["", ""], [list(row) for row in (record.summary or {}).get("figures", [])]),
        configuration=json.dumps(record.config.model_dump(mode="json"), indent=2),
        samples=samples(record.directory),
    )


def _charts(record: Record, measured: Results, time: TimeAxis) -> dict[str, list[Chart]]:
    def present(*charts: Chart | None) -> list[Chart]:
        return [chart for chart in charts if chart is not None]

    return {
        "held_out": [
            learning.held_out_chart(measured, quantity, time) for quantity in measured.quantities if measured.curve
        ],
        "reward": present(learning.reward_chart(record)),
        "timeline": present(
            timeline_chart(record.folds.timeline.spans, record.folds.timeline.marks, record.shown_s, time)
        ),
        "staleness": staleness.staleness_charts(record),
        "lengths": lengths.length_charts(record),
        "selection": present(lengths.selection_chart(record)),
        "rounds": rounds.round_charts(record),
        "turns": turns.turn_charts(record, time),
        "loads": loads.heat_charts(record.folds.loads, record.shown_s, time),
        "rates": present(
            loads.throughput_chart(record, time),
            loads.buffer_chart(record, time),
            loads.ages_chart(record.folds.loads, record.shown_s, time),
        ),
        "trainer": learning.trainer_charts(record),
        "faults": present(effective_time_chart(record, time)),
    }


def _headline(record: Record, measured: Results, *, simulated: bool) -> dict[str, Any]:
    config, summary = record.config, record.summary
    found = limit(record.folds.timeline.spans, [batch.ended_s for batch in record.measured])
    first = "" if simulated else without_signal(record.folds.batches.signals)
    return {
        "answers": answers(SIMULATED if simulated else gain(measured), found, first),
        **facts_of(config, simulated=simulated),
        "wall": duration(summary["wall_s"] if summary else record.last_s),
        "tiles": _tiles(measured),
    }


def _tiles(results: Results) -> list[tuple[str, str, str, bool]]:
    """Label, number and unit of each figure before and after and of the best control, and whether it stands out."""
    shown: list[tuple[str, MeasuredAnswers | None, bool]] = [
        ("before", results.before, False),
        ("after RL", results.after, True),
        ("best control", results.best_control, False),
    ]
    tiles, several = [], len(results.quantities) > 1
    for place, quantity in enumerate(results.quantities):
        for label, measured, strong in shown[:2] if place else shown:
            if measured is not None:
                number, _, unit = said(quantity, measured.estimate(quantity).value).partition(" ")
                name, unit = (f"{quantity} {label}", unit) if several else (label, unit or str(quantity))
                tiles.append((name, number, unit, strong))
    return tiles


def _notes(record: Record) -> list[str]:
    """What a reader must know before the figures."""
    notes = list(record.folds.run.noted if record.summary is None else record.summary.get("warnings", []))
    notes += [f"{line}." for line in treated_rows(record.summary or {})]
    notes += [f"{line}." for line in failures((record.summary or {}).get("prompts", {}))]
    if record.summary is None:
        steps = f"step {record.folds.run.step} of {record.config.pipeline.steps}"
        state = "is still running" if record.directory.running() else "has not finished"
        notes.append(f"This run {state}: it has done {steps}. The figures below are what its log holds so far.")
    if record.folds.run.failure is not None:
        notes.append(f"The run gave up: {record.folds.run.failure}")
    if record.contradictions:
        notes.append(
            f"{record.contradictions} snapshots of replicas contradict the controller: they ran something else than it "
            "believed."
        )
    resumed = [mark for mark in record.folds.timeline.marks if mark.kind is MarkKind.RESUMED]
    notes += [
        f"The driver stopped and the run was resumed at {mark.at_s:.0f} s. "
        "The run's clock stands still while no driver lives."
        for mark in resumed
    ]
    notes += [f"The run was resumed with changes: {changes_in_words(change)}." for change in record.directory.changes()]
    wanted = record.config.evaluation.controls and record.directory.simulated is None
    if wanted and not record.controls and record.summary is not None:
        notes.append("The control of continued fine-tuning was not measured in this run.")
    return notes
