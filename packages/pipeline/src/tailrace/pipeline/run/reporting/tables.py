"""Tables of the report: rows of text, ready for the template."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from tailrace.pipeline.run.reporting.accuracy import Measured, Results
from tailrace.pipeline.run.reporting.headline import percent
from tailrace.pipeline.run.reporting.record import Record
from tailrace.pipeline.run.reporting.timeline_chart import Utilisation

MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class Table:
    """One table. Columns that begin with ``#`` hold numbers and are aligned right."""

    columns: list[str]
    rows: list[list[str]]
    note: str = ""
    strong: int | None = None


def accuracy_table(results: Results) -> Table:
    """Before, after and every control."""
    listed = [results.before, results.after, results.after_greedy, *results.controls]
    rows = [_measured(measured) for measured in listed if measured is not None]
    failed = sum(measured.failed for measured in listed if measured is not None)
    note = f"{failed} answers could not be scored and count neither way." if failed else ""
    strong = [row[0] for row in rows].index("after RL, sampled") if results.after else None
    columns = ["", "#accuracy", "#standard error", "#problems", "#length p50", "#length p99"]
    return Table(columns, rows, note, strong)


def utilisation_table(rows: list[Utilisation]) -> Table:
    """Share of time per role."""
    columns = ["role", "#members", "#busy", "#pulling", "#idle (bubbles)", "#starting or down"]
    return Table(
        columns,
        [
            [row.role, str(row.members), percent(row.busy), percent(row.pulling), percent(row.idle), percent(row.out)]
            for row in rows
        ],
    )


def bubble_table(rows: list[Utilisation]) -> Table:
    """Time that was not work, by cause."""
    listed = [[row.role, cause, f"{spent:.1f}", percent(share)] for row in rows for cause, spent, share in row.bubbles]
    return Table(["role", "cause", "#member seconds", "#of the role's time"], listed)


def repack_table(record: Record) -> Table:
    """Every repack."""
    rows = [
        [
            f"{move.at_s:.1f}",
            move.source,
            move.destination,
            "" if move.version is None else str(move.version),
            str(move.trajectories),
        ]
        for move in record.observed.repacks
    ]
    return _cut(Table(["#time (s)", "from", "to", "#version", "#trajectories"], rows))


def fault_table(record: Record) -> Table:
    """Every member that went down."""
    rows = [
        [
            f"{fault.at_s:.1f}",
            f"{fault.role} {fault.member}",
            fault.reason,
            "not yet" if fault.up_s is None else f"{fault.up_s - fault.at_s:.1f}",
        ]
        for fault in record.observed.faults
    ]
    return _cut(Table(["#time (s)", "member", "what was seen", "#up again after (s)"], rows))


def version_table(record: Record) -> Table:
    """How versions reached the replicas."""
    rows = []
    for version in record.observed.versions.values():
        pulls = version.pulls_s
        published = version.published_s
        rows.append(
            [
                str(version.version),
                f"{version.ordered_s:.1f}",
                "not yet" if published is None else f"{published - version.ordered_s:.2f}",
                str(len(pulls)),
                f"{sum(pulls) / len(pulls):.2f}" if pulls else "none",
                f"{max(pulls):.2f}" if pulls else "none",
            ]
        )
    relays = record.config.relay.count
    note = f"{relays} relay{'s' if relays != 1 else ''}. A version that no replica pulled was overtaken by a newer one."
    columns = ["#version", "#ordered (s)", "#published after (s)", "#pulls", "#pull mean (s)", "#pull max (s)"]
    return _cut(Table(columns, rows, note))


def facts(record: Record) -> list[tuple[str, str]]:
    """Counts of the whole run."""
    counts, learner = record.controller.ledger.counts, record.controller.learner
    lags = Counter(lag for batch in record.batches for lag in batch.at_consumption)
    total = sum(lags.values())
    found = [
        ("steps", f"{learner.step} of {record.config.pipeline.steps}"),
        ("trajectories trained on", f"{counts.trained_trajectories:,}"),
        ("response tokens trained on", f"{counts.trained_tokens:,}"),
        ("groups filtered / failed", f"{counts.filtered} / {counts.failed}"),
        ("trajectories regenerated", f"{counts.regenerated_trajectories}"),
        ("repacks", f"{record.controller.moves}"),
        ("replica restarts", f"{record.controller.replica_restarts}"),
    ]
    if total:
        mean = sum(lag * count for lag, count in lags.items()) / total
        found.append(("staleness, mean / max", f"{mean:.2f} / {max(lags)}"))
    summary = record.summary
    if summary is not None:
        found.append(("trained tokens per second", f"{summary['tokens_per_s']:,.0f}"))
        found.append(
            ("trajectories lost / used twice", f"{summary['lost_trajectories']} / {summary['consumed_twice']}")
        )
    return found


def _measured(measured: Measured) -> list[str]:
    return [
        measured.name,
        percent(measured.accuracy),
        f"± {percent(measured.error)}",
        str(measured.problems),
        f"{measured.length_p50:.0f}",
        f"{measured.length_p99:.0f}",
    ]


def _cut(table: Table) -> Table:
    if len(table.rows) <= MOST_ROWS:
        return table
    left = len(table.rows) - MOST_ROWS
    return Table(table.columns, table.rows[:MOST_ROWS], f"{table.note} {left} more rows are in the event log.".strip())
