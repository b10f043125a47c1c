"""Tables of the report: rows of text, ready for the template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.contracts import SessionOrigin
from tailrace.faulttol import ROLES
from tailrace.pipeline.run.figures.replicas import ReplicaFigures
from tailrace.pipeline.run.figures.results import MeasuredAnswers, Quantity, Results
from tailrace.pipeline.run.pools import relay_count
from tailrace.report.charts.staleness import staleness_in_words
from tailrace.report.figures.held_out import UNKNOWN_ACCURACY, said
from tailrace.report.figures.prompts import PromptFates
from tailrace.report.figures.system import Utilisation
from tailrace.report.fold.folds import Folds
from tailrace.report.fold.interruptions import MarkKind
from tailrace.report.html.page import Table, cut
from tailrace.report.reason_words import end, percent, why
from tailrace.report.record import Record

_MOST_SEATS = 32


def results_table(results: Results) -> Table:
    """The table of results before, after and of every control, each also by source if there are several."""
    rows = []
    for measured in results.listed:
        parts = [(f"{measured.name}, {source}", part) for source, part in measured.sources.items()]
        for name, part in [(measured.name, measured), *parts]:
            estimates = [cell for quantity in results.quantities for cell in _estimate(quantity, part)]
            rows.append([name, *estimates, str(part.problems), f"{part.length_p50:.0f}", f"{part.length_p99:.0f}"])
    notes = [f"{results.unscored} answers could not be scored and count neither way."] if results.unscored else []
    if results.quantities == (Quantity.REWARD,):
        notes.append(f"Accuracy is {UNKNOWN_ACCURACY}.")
    strong = [row[0] for row in rows].index("after RL, sampled") if results.after else None
    shown = [column for quantity in results.quantities for column in (f"#{quantity}", "#standard error")]
    return Table(["", *shown, "#problems", "#length p50", "#length p99"], rows, " ".join(notes), strong)


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
        [f"{move.at_s:.1f}", move.source, move.destination, _version(move.version), str(move.stopped)]
        for move in record.folds.interruptions.of(MarkKind.REPACK)
    ]
    return cut(Table(["#time (s)", "from", "to", "#version", "#trajectories"], rows))


def interruption_table(record: Record) -> Table:
    """Every interruption but repacks."""
    rows = [
        [f"{each.at_s:.1f}", each.source, each.kind, _version(each.version), why(each.reason), str(each.stopped)]
        for each in record.folds.interruptions.all
        if each.kind is not MarkKind.REPACK
    ]
    columns = ["#time (s)", "replica", "what for", "#version", "why", "#trajectories back to the pool"]
    return cut(Table(columns, rows))


def round_table(record: Record) -> Table:
    """Every round."""
    rows = []
    for number, one in enumerate(record.folds.rounds.rounds, 1):
        generated = one.tokens + one.wasted
        rows.append(
            [
                str(number),
                one.kind,
                str(len(one.prompts)),
                str(one.deferred),
                f"{one.given_s - one.began_s:.1f}",
                "not yet" if one.ended_s is None else f"{one.ended_s - one.given_s:.1f}",
                f"{one.tokens:,}",
                f"{one.wasted:,}",
                percent(one.wasted / generated) if generated else "none",
            ]
        )
    note = "What samples and groups that lost a race had generated is thrown away: what the store had of it, to the last flush."
    columns = ["#round", "kind", "#groups", "#deferred", "#until its step (s)", "#step (s)", "#tokens trained on"]
    return cut(Table([*columns, "#thrown away", "#share"], rows, note))


def loan_table(found: ReplicaFigures) -> Table:
    """What it took to lend devices to the trainer and to get them back; no rows where none were lent."""
    if not found.lend_s:
        return Table([], [])
    freed = [] if found.freed is None else [found.freed[0] - found.freed[1]]
    steps: Sequence[tuple[str, list[float], list[int]]] = (
        ("a replica leaves: its engine sleeps", found.lend_s, freed),
        ("the trainer brings its state back", *_apart(found.onloads)),
        ("the trainer leaves", *_apart(found.offloads)),
        ("from then until the engine is awake", found.return_s, []),
    )
    rows = [
        [
            name,
            str(len(seconds)),
            f"{sum(seconds) / len(seconds):.3f}",
            f"{max(seconds):.3f}",
            _mib(max(nbytes, default=0)),
        ]
        for name, seconds, nbytes in steps
        if seconds
    ]
    return Table(["", "#times", "#mean (s)", "#longest (s)", "#most bytes (MiB)"], rows)


def _apart(moves: Sequence[tuple[float, int]]) -> tuple[list[float], list[int]]:
    return [seconds for seconds, _ in moves], [nbytes for _, nbytes in moves]


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.0f}" if nbytes > 0 else "none"


def fault_table(record: Record) -> Table:
    """Every member that went down."""
    rows = [
        [
            f"{fault.at_s:.1f}",
            f"{fault.role} {fault.member}",
            fault.reason,
            "not yet" if fault.up_s is None else f"{fault.up_s - fault.at_s:.1f}",
        ]
        for fault in record.folds.outages.all
    ]
    return cut(Table(["#time (s)", "member", "what was seen", "#up again after (s)"], rows))


def version_table(record: Record) -> Table:
    """How versions reached the replicas."""
    rows = []
    for version in record.folds.versions.ordered.values():
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
    relays = relay_count(record.config)
    note = f"{relays} relay{'s' if relays != 1 else ''}. A version that no replica pulled was overtaken by a newer one."
    columns = ["#version", "#ordered (s)", "#published after (s)", "#pulls", "#pull mean (s)", "#pull max (s)"]
    return cut(Table(columns, rows, note))


def session_table(record: Record) -> Table:
    """What became of the turns that ended, by where their session was had from; no rows where each response is one turn."""
    turns, counts = record.folds.turns, record.folds.run.counts
    became = {
        "answered in its session": turns.answers[SessionOrigin.HELD],
        "answered in a session restored from a snapshot": turns.answers[SessionOrigin.RESTORED],
        "answered in a session replayed from its first turn": turns.answers[SessionOrigin.REPLAYED],
        "session lost: the response began anew": counts.sessions_lost,
        "no answer that can be used: its group failed": turns.unanswered,
    }
    became["not answered yet, or dropped meanwhile"] = max(0, counts.turns - sum(became.values()))
    rows = [[name, f"{count:,}", percent(count / counts.turns)] for name, count in became.items() if count]
    note = "Sessions are restored or replayed after the death of a worker or of a member that had them."
    return Table(["turns that ended", "#count", "#share"], rows, note)


def turn_facts(folds: Folds) -> list[tuple[str, str]]:
    """Turns, and what became of the sessions of environments that died; nothing where each response is one turn."""
    turns, counts = folds.turns, folds.run.counts
    if not counts.turns:
        return []
    latencies = turns.latencies
    took = f"; an environment takes {latencies.mean_s:.2g} s on average" if latencies.count else ""
    restored, replayed = (turns.answers[origin] for origin in (SessionOrigin.RESTORED, SessionOrigin.REPLAYED))
    return [
        ("turns", f"{counts.turns:,}{took}"),
        ("sessions restored / replayed / lost", f"{restored:,} / {replayed:,} / {counts.sessions_lost:,}"),
    ]


def facts(record: Record) -> list[tuple[str, str]]:
    """Counts of the whole run."""
    run, became = record.folds.run, PromptFates.of(record.folds.run)
    restarts = [(f"{role} restarts", f"{count}") for role in sorted(ROLES) if (count := run.restarts(role))]
    found = [
        ("steps", f"{run.step} of {record.config.pipeline.steps}"),
        ("trajectories trained on", f"{sum(len(batch.lengths) for batch in record.batches):,}"),
        ("response tokens trained on", f"{sum(sum(batch.lengths) for batch in record.batches):,}"),
        ("prompts admitted", f"{became.admitted:,}"),
        ("prompts trained on", f"{became.trained:,}"),
        *((f"prompts filtered: {end(reason)}", f"{count:,}") for reason, count in became.filtered.items()),
        ("prompts failed / lost", f"{sum(became.failed.values()):,} / {became.lost:,}"),
        ("trajectories regenerated", f"{run.counts.regenerated_trajectories}"),
        *turn_facts(record.folds),
        *_interruptions(record),
        *(restarts or [("restarts", "0")]),
        ("staleness", staleness_in_words(record)),
    ]
    if run.counts.surplus_trajectories:
        found.append(("surplus samples aborted", f"{run.counts.surplus_trajectories:,}"))
    if record.contradictions:
        found.append(("snapshots that contradict the controller", f"{record.contradictions}"))
    if record.batches:
        found.append(("trained tokens per second", f"{record.tokens_per_s:,.0f}"))
    summary = record.summary
    if summary is not None:
        twice = summary["consumed_twice"]
        said = f"{summary['lost_trajectories']} / {'not known' if twice is None else twice}"
        found.append(("trajectories lost / used twice", said))
        if "reward_exposed_s" in summary:  # a run of an earlier version has none
            found += _scores(summary)
        if summary.get("unpredicted_share") is not None:
            found += _predictions(summary)
    seats = run.seats()
    found += [(f"{name} stood on", str(seat)) for name, seat in seats[:_MOST_SEATS]]
    if len(seats) > _MOST_SEATS:
        found.append(("others stood on", f"devices of {len({seat.machine for _, seat in seats})} machines"))
    return found


def _scores(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What came of scores, where they did more than give rewards at once."""
    found = [("training waited for rewards alone (s)", f"{summary['reward_exposed_s']:,.1f}")]
    if summary["scores_over_budget"]:
        false, tried = summary["false_timeouts"], summary["scores_rechecked"]
        found.append(("scores over budget", f"{summary['scores_over_budget']:,}"))
        found.append(("of a sample of them, false timeouts", f"{false:,} of {tried:,}"))
    if summary["scores_failed"]:
        found.append(("attempts at a score that failed", f"{summary['scores_failed']:,}"))
    return found


def _predictions(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Whether lengths were predicted ahead of the launches."""
    found = [("prompts launched without a predicted length", percent(summary["unpredicted_share"]))]
    if summary["predicted_ahead_s"] is not None:
        found.append(("seconds for which the others had one (median)", f"{summary['predicted_ahead_s']:,.1f}"))
    return [*found, ("launches waited for predictions (s)", f"{summary['waited_for_predictions_s']:,.1f}")]


def _interruptions(record: Record) -> list[tuple[str, str]]:
    interruptions = record.folds.interruptions
    repacks = len(interruptions.of(MarkKind.REPACK))
    if not record.folds.run.mixes_versions:
        return [("repacks", f"{repacks}")]
    pulls = interruptions.of(MarkKind.PULL)
    found = [
        ("pulls that interrupted work", f"{len(pulls):,}"),
        ("trajectories interrupted by them", f"{sum(each.stopped for each in pulls):,}"),
        ("trajectories migrated", f"{sum(each.stopped for each in interruptions.of(MarkKind.EVICTION)):,}"),
        ("resumed on newer weights", f"{record.folds.run.counts.resumed_on_newer:,}"),
    ]
    return found + ([("repacks", f"{repacks}")] if repacks else [])


def _version(version: int | None) -> str:
    return "none" if version is None else str(version)


def _estimate(quantity: Quantity, measured: MeasuredAnswers) -> list[str]:
    estimate = measured.estimate(quantity)
    return [said(quantity, estimate.value), f"± {said(quantity, estimate.error)}"]
