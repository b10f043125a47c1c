"""``report.html``: a run to look at, in one file that needs no network.

config.json  events.jsonl ──replay──► Record ──► charts, tables, words ──► template ──► report.html
metrics.jsonl  controls.jsonl  summary.json
"""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.reporting import headline, learning, lengths, staleness, systems, tables
from tailrace.pipeline.run.reporting.accuracy import Results, results
from tailrace.pipeline.run.reporting.charts import Chart, TimeAxis
from tailrace.pipeline.run.reporting.fates import prompts
from tailrace.pipeline.run.reporting.record import Record, read_record
from tailrace.pipeline.run.reporting.samples import samples
from tailrace.pipeline.run.reporting.timeline_chart import timeline_chart, utilisation
from tailrace.pipeline.run.timeline import MarkKind

_PARTS = "tailrace.pipeline.run.reporting"


def write_report(directory: RunDirectory) -> Path:
    """Write the report of a run, finished or not; returns its path.

    Raises:
        RunDirectoryError, ConfigError: a file of the run is damaged.
        ControllerError: the event log was written by another version of the controller.
    """
    html = render(read_record(directory))
    partial = directory.report.with_name(directory.report.name + ".partial")
    partial.write_text(html, encoding="utf-8")
    partial.replace(directory.report)
    return directory.report


def render(record: Record) -> str:
    """The report as HTML."""
    import jinja2
    from plotly.offline import get_plotlyjs

    measured = results(record)
    time = TimeAxis.for_length(record.observed.last_s)
    used = utilisation(record.timeline.spans, record.first_work_s, record.last_step_s)
    groups = _charts(record, measured, time)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_part("report.html.jinja"))
    html: str = template.render(
        title=f"{record.config.app}, {record.directory.root.name}",
        headline=_headline(record, measured),
        notes=_notes(record),
        facts=tables.facts(record),
        charts=groups,
        accuracy=tables.accuracy_table(measured),
        utilisation=tables.utilisation_table(used),
        bubbles=tables.bubble_table(used),
        window=(record.first_work_s, record.last_step_s),
        prompts=str(prompts(record.controller)),
        selection=lengths.selection_table(record),
        repacks=tables.repack_table(record),
        interruptions=tables.interruption_table(record),
        interrupts=record.controller.ledger.mixes_versions,
        faults=tables.fault_table(record),
        versions=tables.version_table(record),
        configuration=json.dumps(record.config.model_dump(mode="json"), indent=2),
        samples=samples(record.directory),
        style=_part("report.css"),
        script=_part("report.js"),
        plotly=get_plotlyjs(),
        data=_script_json([asdict(chart) for group in groups.values() for chart in group]),
    )
    return html


def _charts(record: Record, measured: Results, time: TimeAxis) -> dict[str, list[Chart]]:
    def present(*charts: Chart | None) -> list[Chart]:
        return [chart for chart in charts if chart is not None]

    return {
        "accuracy": present(learning.accuracy_chart(measured, time)),
        "reward": present(learning.reward_chart(record)),
        "timeline": present(timeline_chart(record, time)),
        "staleness": staleness.staleness_charts(record),
        "lengths": lengths.length_charts(record),
        "selection": present(lengths.selection_chart(record)),
        "rates": present(systems.throughput_chart(record, time), systems.buffer_chart(record, time)),
        "trainer": learning.trainer_charts(record),
    }


def _headline(record: Record, measured: Results) -> dict[str, Any]:
    config, summary = record.config, record.summary
    small = config.model.small
    model = (
        f"small Qwen3, {small.layers} layers of {small.hidden}" if small else str(config.model.path or "small Qwen3")
    )
    wall_s = summary["wall_s"] if summary else record.observed.last_s
    return {
        "gain": headline.gain(measured),
        "app": config.app,
        "model": model,
        "task": config.task.name or str(config.task.train),
        "seed": config.seed,
        "wall": duration(wall_s),
        "before": measured.before,
        "after": measured.after,
        "best": measured.best_control,
    }


def _notes(record: Record) -> list[str]:
    """What a reader must know before the figures."""
    notes = []
    if record.summary is None:
        steps = f"step {record.controller.learner.step} of {record.config.pipeline.steps}"
        state = "is still running" if record.directory.running() else "has not finished"
        notes.append(f"This run {state}: it has done {steps}. The figures below are what its log holds so far.")
    if record.controller.failure is not None:
        notes.append(f"The run gave up: {record.controller.failure}")
    contradictions = record.controller.fleet.contradictions
    if contradictions:
        notes.append(
            f"{contradictions} snapshots of replicas contradict the controller: they ran something else than it believed."
        )
    resumed = [mark for mark in record.timeline.marks if mark.kind is MarkKind.RESUMED]
    notes += [
        f"The driver stopped and the run was resumed at {mark.at_s:.0f} s ({mark.label}). "
        "The run's clock stands still while no driver lives."
        for mark in resumed
    ]
    if not record.controls and record.summary is not None and record.config.evaluation.controls:
        notes.append("The control of continued fine-tuning was not measured in this run.")
    return notes


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"


def _part(name: str) -> str:
    return files(_PARTS).joinpath(name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element that holds it."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
