"""Tables of the report: rows of text, ready for the template."""

from __future__ import annotations

from tailrace.pipeline.run.reporting.accuracy import Measured, Results
from tailrace.pipeline.run.reporting.fates import prompts
from tailrace.pipeline.run.reporting.headline import percent
from tailrace.pipeline.run.reporting.interruptions import Why
from tailrace.pipeline.run.reporting.record import Record
from tailrace.pipeline.run.reporting.staleness import staleness_in_words
from tailrace.pipeline.run.reporting.table import Table, cut
from tailrace.pipeline.run.reporting.timeline_chart import Utilisation


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
        for move in record.observed.interrupted(Why.REPACK)
    ]
    return cut(Table(["#time (s)", "from", "to", "#version", "#trajectories"], rows))


def interruption_table(record: Record) -> Table:
    """Every moment at which a replica was interrupted otherwise than by a repack."""
    moments: dict[tuple[float, str, Why], list[int]] = {}
    labels: dict[tuple[float, str, Why], str] = {}
    for each in record.observed.interruptions:
        if each.why is not Why.REPACK:
            key = (each.at_s, each.source, each.why)
            moments.setdefault(key, []).append(each.trajectories)
            labels[key] = "none" if each.version is None else str(each.version)
            labels[key] += f" to {each.pulled}" if each.pulled is not None else ""
    rows = [
        [f"{at_s:.1f}", source, why, labels[at_s, source, why], str(sum(many))]
        for (at_s, source, why), many in moments.items()
    ]
    return cut(Table(["#time (s)", "replica", "why", "version", "#trajectories back to the pool"], rows))


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
    return cut(Table(["#time (s)", "member", "what was seen", "#up again after (s)"], rows))


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
    return cut(Table(columns, rows, note))


def facts(record: Record) -> list[tuple[str, str]]:
    """Counts of the whole run."""
    controller = record.controller
    counts, learner = controller.ledger.counts, controller.learner
    became = prompts(controller)
    found = [
        ("steps", f"{learner.step} of {record.config.pipeline.steps}"),
        ("trajectories trained on", f"{counts.trained_trajectories:,}"),
        ("response tokens trained on", f"{counts.trained_tokens:,}"),
        ("prompts admitted", f"{became.admitted:,}"),
        ("prompts trained on", f"{became.trained:,}"),
        *((f"prompts filtered: {reason}", f"{count:,}") for reason, count in became.filtered.items()),
        ("prompts failed / lost", f"{became.failed:,} / {became.lost:,}"),
        ("trajectories regenerated", f"{counts.regenerated_trajectories}"),
        *_interruptions(record),
        ("replica restarts", f"{controller.replica_restarts}"),
        ("staleness", staleness_in_words(record)),
    ]
    if counts.surplus_trajectories:
        found.append(("surplus samples aborted", f"{counts.surplus_trajectories:,}"))
    if controller.fleet.contradictions:
        found.append(("snapshots that contradict the controller", f"{controller.fleet.contradictions}"))
    summary = record.summary
    if summary is not None:
        found.append(("trained tokens per second", f"{summary['tokens_per_s']:,.0f}"))
        found.append(
            ("trajectories lost / used twice", f"{summary['lost_trajectories']} / {summary['consumed_twice']}")
        )
    return found


def _interruptions(record: Record) -> list[tuple[str, str]]:
    controller, observed = record.controller, record.observed
    if not controller.ledger.mixes_versions:
        return [("repacks", f"{controller.moves}")]
    pulls = observed.interrupted(Why.PULL)
    found = [
        ("pulls that interrupted work", f"{len(pulls):,}"),
        ("trajectories interrupted by them", f"{sum(each.trajectories for each in pulls):,}"),
        ("trajectories migrated", f"{sum(each.trajectories for each in observed.interrupted(Why.EVICTION)):,}"),
        ("resumed on newer weights", f"{controller.ledger.counts.resumed_on_newer:,}"),
    ]
    return found + ([("repacks", f"{controller.moves}")] if controller.moves else [])


def _measured(measured: Measured) -> list[str]:
    return [
        measured.name,
        percent(measured.accuracy),
        f"± {percent(measured.error)}",
        str(measured.problems),
        f"{measured.length_p50:.0f}",
        f"{measured.length_p99:.0f}",
    ]
