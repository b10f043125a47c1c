"""What the page is sent of a run at a moment: plain values for JSON, and of what only grows, what is new since a cursor.

A frame is bounded whatever the length of the run: spans and curves are drawn coarser where there are many.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from tailrace import contracts as c
from tailrace.contracts import TailraceError, shown
from tailrace.controller.evaluations import EvaluationResult
from tailrace.controller.members import DATA, ENVIRONMENT, RANKER, RELAY, REPLICA, SCORER, TRAINER
from tailrace.controller.view import RunView, Whereabouts
from tailrace.pipeline.errors import resume_command
from tailrace.pipeline.run.figures.batches import Batch, mean
from tailrace.pipeline.run.figures.results import Quantity, Results, baseline, results_of
from tailrace.report.charts.chart import thinned
from tailrace.report.charts.timeline import drawable
from tailrace.report.errors import ReportError
from tailrace.report.figures.held_out import gain
from tailrace.report.figures.prompts import PromptFates
from tailrace.report.figures.verdict import Limit, answers, limit
from tailrace.report.fold.loads import FIRST_LAG, GENERATED, LAGS
from tailrace.report.fold.timeline import Span
from tailrace.report.fold.trajectories import Fate, TrajectoryEntry
from tailrace.report.reason_words import duration, waits
from tailrace.report.record import SIMULATED, facts_of, fine_tuned
from tailrace.report.watch.alarms import Alarm, Level
from tailrace.report.watch.following import FollowedRun, Story

MOST_LANES = 64
"""More replicas than that are a fleet: a cell for each in place of a lane."""
MOST_SPANS, MOST_MARKS, MOST_POINTS, MOST_INCIDENTS, MOST_DEVICES = 3000, 300, 240, 40, 256
LOOKED_AT_PER_S, LEAST_WAIT_S = 5000, 1.0
"""Trajectories that are looked at a second for where they are, which takes a microsecond each; fewer than that is at once."""
PAGE = 50
LAST_BATCHES = 30
"""Batches at the end, of which none is left out where there are many: those of the page's table and of its windows of steps."""
WINDOW_STEPS = 10
SILENT_S = 30.0
OVER = ("done", "failed", "gone")
_ORDER = (TRAINER, RELAY, REPLICA, SCORER, ENVIRONMENT, DATA, RANKER)
_CELLS = {
    "generating": "G", "pulling": "P", "idle": "I", "starting": "S", "down": "D", "releasing": "R", "stopping": "R",
    "resizing": "S", "waiting": "W", "up": "I",
}  # fmt: skip
_WHERE = {
    Whereabouts.POOL: "in the pool",
    Whereabouts.REPLICA: "on replicas",
    Whereabouts.ENVIRONMENT: "in environments",
    Whereabouts.SCORER: "being scored",
    Whereabouts.GROUP: "scored, group incomplete",
    Whereabouts.BUFFER: "in the buffer",
    Whereabouts.TRAINER: "in training",
}


class CursorError(ReportError, ValueError):
    """A request asks for something that is not a number or not known."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """What a page has: of which reading of the log, how many spans, marks, incidents, which instant, whether all is over."""

    generation: int = 0
    spans: int = 0
    marks: int = 0
    incidents: int = 0
    instants: int = -1
    over: int = 0


class Frames:
    """Makes frames of a run. What only changes with a step is kept until the next."""

    def __init__(self, followed: FollowedRun) -> None:
        self._followed = followed
        self._config = followed.directory.configuration()
        self._limit: tuple[tuple[int, int], Limit] | None = None
        self._results: tuple[tuple[int, int, bool], Results] | None = None
        self._where: tuple[tuple[int, int], list[dict[str, Any]], float] | None = None
        self._where_due_s = 0.0

    def frame(self, cursor: Cursor) -> dict[str, Any]:
        """The run now, for a page that has what `cursor` says."""
        followed = self._followed
        story, log = followed.story, followed.log
        fresh = cursor.generation != followed.generation
        if fresh:
            cursor = Cursor(followed.generation)
        life = self._life()
        over = life["state"] in OVER and not followed.reading
        found: dict[str, Any] = {
            "cursor": {"generation": followed.generation, "instants": story.instants, "over": int(over)},
            "life": life,
            "reading": None if not followed.reading else {"read": log.read_bytes, "of": log.size},
            "trouble": followed.trouble,
        }
        if fresh:
            found["about"] = self._about()
        if not fresh and (cursor.instants, cursor.over) == (story.instants, over):
            return found
        results = self._results_of(story, over=over)
        places, looked_s, current = self._places(story)
        if not current or (story.run.finished and not over):  # the controls come behind its log's end
            found["cursor"]["instants"] = -1  # the page lacks something, even if nothing else comes
        timeline, marked = story.folds.timeline, story.folds.timeline.marked
        alarms = story.alarms.now(over=over)
        found["cursor"] |= {"spans": timeline.count, "marks": marked, "incidents": story.told}
        return found | {
            "now_s": story.run.now,
            "progress": _progress(story.run, self._config.pipeline.steps),
            "answers": self._answers(story, alarms, results),
            "alarms": [asdict(alarm) for alarm in alarms],
            "trainer": _trainer(story),
            "lanes": _lanes(story, cursor.spans),
            "marks": None if marked == cursor.marks else _marks(story),
            "fleet": _fleet(story.run),
            "whereabouts": places,
            "looked_s": looked_s,
            "buffers": _buffers(story.run),
            "devices": _devices(story.run),
            "learning": _learning(story, results),
            "rates": _rates(story),
            "incidents": [
                [each.at_s, each.said]
                for each in story.incidents[-min(MOST_INCIDENTS, max(0, story.told - cursor.incidents)) :]
                if story.told > cursor.incidents
            ],
            "counts": str(PromptFates.of(story.run)),
        }

    def trajectories(self, fate: str, like: str, offset: int) -> dict[str, Any]:
        """A page of trajectories, those first that were begun last.

        Raises:
            CursorError: there is no such fate.
        """
        if fate and fate not in set(Fate):
            raise CursorError(f"found the fate {fate[:40]!r}, expected one of {', '.join(Fate)}")
        story = self._followed.story
        rows, more = [], False
        for number, entry in enumerate(story.trajectories.newest(Fate(fate) if fate else None, like)):
            if number >= offset + PAGE:
                more = True
                break
            if number >= offset:
                rows.append(_entry(story, entry))
        return {
            "rows": rows,
            "more": more,
            "known": len(story.trajectories.entries),
            "forgotten": story.trajectories.forgotten,
        }

    def known(self, trajectory: str) -> dict[str, Any] | None:
        """What the list says of one trajectory."""
        entry = self._followed.story.trajectories.entries.get(trajectory)
        return None if entry is None else _entry(self._followed.story, entry)

    def _about(self) -> dict[str, Any]:
        config, directory = self._config, self._followed.directory
        simulated = directory.simulated is not None
        return {
            **facts_of(config, simulated=simulated),
            "run": shown(directory.root.name),
            "simulated": simulated,
            "replay": self._followed.speed,
            "most_lanes": MOST_LANES,
        }

    def _life(self) -> dict[str, Any]:
        """Whether the run lives, and what its process says that it does."""
        followed = self._followed
        status, run = followed.status(), followed.story.run
        alive, simulated = followed.alive(), followed.directory.simulated is not None
        phase, detail = str(status.get("phase", "")), str(status.get("detail", ""))
        age_s = max(0.0, time.time() - float(status.get("updated_at") or time.time()))
        if alive and age_s > SILENT_S and not simulated:
            state, said = "silent", f"The run's process has written nothing for {duration(age_s)}."
        elif alive:
            state, said = "live", f"{phase}{f', {detail}' if detail else ''}"
        elif run.failure is not None or phase == "failed":
            state, said = "failed", f"The run failed: {run.failure or detail}"
        elif run.finished or phase == "done":
            state, said = "done", "The run is complete."
        elif not phase:
            state, said = "unknown", "The run has not written its status yet."
        else:
            why = "was interrupted" if phase == "interrupted" else "has no process any more"
            state, said = "gone", f"The run {why}; go on with: {resume_command(followed.directory.root)}"
        if followed.held_back:
            speed = followed.speed or 1.0
            each = duration(speed) if speed >= 10 else f"{speed:.2g} s"
            state, said = "replay", f"Replaying the log: a second here is {each} of the run."
        left = status.get("left_s") if state == "live" else None
        return {"state": state, "said": said, "left_s": left}

    def _answers(self, story: Story, alarms: Sequence[Alarm], results: Results) -> list[dict[str, str]]:
        good = SIMULATED if self._followed.directory.simulated is not None else gain(results)
        first = next((alarm.said for alarm in alarms if alarm.level is Level.ALARM), "")
        return [{"asked": asked, "said": said} for asked, said in answers(good, self._limit_of(story), first)]

    def _places(self, story: Story) -> tuple[list[dict[str, Any]], float, bool]:
        """Where trajectories are, when that was on the run's clock, and whether it is now. Very many are looked at rarely."""
        key, now_s = (self._followed.generation, story.instants), self._followed.clock()
        if self._where is None or (self._where[0] != key and now_s >= self._where_due_s):
            rows = _whereabouts(story.run)
            self._where = key, rows, story.run.now
            started = sum(row["trajectories"] for row in rows) - story.run.unstarted
            wait_s = started / LOOKED_AT_PER_S
            self._where_due_s = now_s + (wait_s if wait_s > LEAST_WAIT_S else 0.0)
        return self._where[1], self._where[2], self._where[0] == key

    def _limit_of(self, story: Story) -> Limit:
        ends = [batch.ended_s for batch in story.folds.batches.trained]
        key = (self._followed.generation, len(ends))
        if self._limit is None or self._limit[0] != key:
            timeline = story.folds.timeline
            self._limit = key, limit([*timeline.ended(), *timeline.open(story.run.now)], ends)
        return self._limit[1]

    def _results_of(self, story: Story, *, over: bool) -> Results:
        """What was measured on held-out problems; of a run that is over, the control that was fine-tuned on is among it."""
        directory, evaluations = self._followed.directory, story.run.evaluations
        if directory.simulated is not None:
            return Results("")
        key = (self._followed.generation, len(evaluations), over)
        if self._results is None or self._results[0] != key:
            controls: list[EvaluationResult] = []
            if over:
                with suppress(TailraceError):  # its log is damaged, and the report says so
                    controls = fine_tuned(directory, story.run)
            self._results = key, results_of(evaluations, controls, baseline=baseline(self._config))
        return self._results[1]


def _progress(run: RunView, steps: int) -> dict[str, Any]:
    """How far a run is. A simulated one that is steady would go on beyond the configured steps, at which it is stopped."""
    return {
        "step": run.step,
        "steps": min(run.steps, steps),
        "version": run.version,
        "published": run.published,
        "durable": run.durable,
        "bound": run.bound,
        "finished": run.finished,
        "trajectories": run.counts.trained_trajectories,
        "tokens": run.counts.trained_tokens,
        "restarts": {role: count for role in _ORDER if (count := run.restarts(role))},
    }


def _trainer(story: Story) -> dict[str, Any] | None:
    """What the trainer does, or what it waits for, why, since when."""
    run = story.run
    span = next((one for one in story.folds.timeline.open(run.now) if one.role == TRAINER), None)
    if span is None:
        return None
    reason = run.why_idle(TRAINER, "0")
    said = "" if reason is None else waits(reason)
    numbers = {} if reason is None else dict(reason.numbers)
    return {"doing": str(span.doing), "said": said or span.label, "since_s": span.start_s, "numbers": numbers}


def _lanes(story: Story, first: int) -> dict[str, Any]:
    """What each member did: the spans since a cursor, or all of them, coarser, where those would be too many."""
    timeline, run = story.folds.timeline, story.run
    fleet = sum(role == REPLICA for role, _ in run.members()) > MOST_LANES

    def shown(spans: Sequence[Span]) -> list[Span]:
        return [span for span in spans if not fleet or span.role != REPLICA]

    new, short_s = shown(timeline.ended(first)), 0.0
    whole = first == 0 or len(new) > MOST_SPANS
    if whole:
        new = shown(timeline.ended())
        if len(new) > MOST_SPANS:
            new, short_s = drawable(new, MOST_SPANS)
    return {
        "whole": whole,
        "coarser_than_s": short_s,
        "ended": [_span(span) for span in new],
        "open": [_span(span) for span in shown(timeline.open(run.now))],
        "members": [list(key) for key in _members(run, fleet=fleet)],
    }


def _members(run: RunView, *, fleet: bool) -> list[tuple[str, str]]:
    known = [key for key in run.members() if not fleet or key[0] != REPLICA]
    rank = {role: place for place, role in enumerate(_ORDER)}
    return sorted(known, key=lambda key: (rank.get(key[0], len(rank)), len(key[1]), key[1]))


def _span(span: Span) -> list[Any]:
    return [span.role, span.member, str(span.doing), round(span.start_s, 3), round(span.end_s, 3), span.label]


def _marks(story: Story) -> list[list[Any]]:
    marks = story.folds.timeline.last_marks(MOST_MARKS)
    return [[mark.role, mark.member, str(mark.kind), round(mark.at_s, 3), mark.label] for mark in marks]


def _fleet(run: RunView) -> list[list[Any]]:
    """Each replica: id, letter of what it does, what it does in words, versions behind the trainer, trajectories, KV cache."""
    return [
        [
            row.id,
            _CELLS.get(row.doing.split()[0], "?"),
            row.doing,
            None if row.version is None else max(0, run.version - row.version),
            row.trajectories,
            row.kv,
        ]
        for row in run.replicas()
    ]


def _whereabouts(run: RunView) -> list[dict[str, Any]]:
    """Trajectories and tokens of each place, by versions behind the trainer; the last column holds all that are further."""
    table: dict[Whereabouts, dict[str, Any]] = {}
    for held in run.whereabouts():
        row = table.setdefault(
            held.where, {"where": _WHERE[held.where], "trajectories": 0, "tokens": 0, "behind": [0] * LAGS, "new": 0}
        )
        row["trajectories"] += held.trajectories
        row["tokens"] += held.tokens
        if held.version is None:
            row["new"] += held.trajectories
        else:
            row["behind"][min(LAGS - 1, max(0, run.version - held.version))] += held.trajectories
    rows = list(table.values())
    if run.unstarted:
        rows.insert(
            0,
            {
                "where": "not started",
                "trajectories": run.unstarted,
                "tokens": 0,
                "behind": [0] * LAGS,
                "new": run.unstarted,
            },
        )
    return rows


def _buffers(run: RunView) -> dict[str, Any]:
    return {
        "batch_groups": run.spec.batch_groups,
        "buffered_groups": run.buffered,
        "generating_groups": run.started,
        "most_open_groups": run.most_open,
        "pooled": run.pooled,
        "blocked_cycles": run.blocked_cycles,
        "waiting_turns": run.waiting_turns,
        "relays": run.relays(),
    }


def _devices(run: RunView) -> dict[str, Any]:
    """Who holds which device; where no process has told where it stands, how many devices each member has."""
    holders: dict[tuple[str, str, int], list[list[Any]]] = defaultdict(list)
    for name, seat in run.seats():
        for index in seat.devices:
            holders[seat.machine, seat.kind, index].append([name, seat.share, _holds(run, name)])
    rows = [
        {"machine": machine, "kind": kind, "index": index, "holders": held}
        for (machine, kind, index), held in sorted(holders.items())
    ]
    counted: list[list[Any]] = []
    if not rows:
        spans = {id_: row.devices for role, id_ in run.members() if role == REPLICA and (row := run.member(role, id_))}
        counted = [[name, count] for name, count in spans.items() if count]
    return {
        "rows": rows[:MOST_DEVICES],
        "left_out": max(0, len(rows) - MOST_DEVICES),
        "replicas": len(counted),
        "replica_devices": sum(count for _, count in counted),
    }


def _holds(run: RunView, name: str) -> str:
    """How a process holds its devices, in a word or two; empty where it just does."""
    role, _, id_ = name.partition(" ")
    row = run.member(role, id_.partition(".")[0])
    if row is None:
        return ""
    if row.cells:
        return f"lent to cell {', '.join(map(str, row.cells))} of the trainer"
    return "" if row.health is c.Health.UP else str(row.health)


def _batch(story: Story, batch: Batch, step: int) -> list[Any]:
    """Step, reward, its error, mean and largest staleness, tokens, end: one row of the curves."""
    signal = story.folds.batches.signals.get(batch.version)
    return [
        step,
        None if signal is None else signal.reward,
        0.0 if signal is None else signal.error,
        round(mean(batch.at_consumption), 4),
        max(batch.at_consumption, default=0),
        sum(batch.lengths),
        round(batch.ended_s, 3),
    ]


def _learning(story: Story, results: Results) -> dict[str, Any]:
    """Reward and staleness of each batch, and what was measured on held-out problems."""
    batches = story.folds.batches.trained
    rows = [_batch(story, batch, step) for step, batch in enumerate(batches, 1)]
    curve = [
        {"step": one.step, "problems": one.problems}
        | {str(quantity): asdict(one.estimate(quantity)) for quantity in results.quantities}
        for one in results.curve
    ]
    return {
        "batches": [*thinned(rows[:-LAST_BATCHES], MOST_POINTS - LAST_BATCHES), *rows[-LAST_BATCHES:]],
        "held_out": thinned(curve, MOST_POINTS),
        "quantity": str(results.quantities[0] if results.quantities else Quantity.ACCURACY),
    }


def _rates(story: Story) -> dict[str, Any]:
    """Tokens a second, generated and trained, and running trajectories by versions behind, over time."""
    batches = story.folds.batches.trained[-WINDOW_STEPS - 1 :]
    trained = None
    if len(batches) > 1 and (took_s := batches[-1].ended_s - batches[0].ended_s) > 0:
        trained = sum(sum(batch.lengths) for batch in batches[1:]) / took_s
    flow = story.folds.loads.flow.coarser(MOST_POINTS)
    generated = flow.row(GENERATED)
    return {
        "ends_s": [round(at, 3) for at in flow.ends_s],
        "generated": [round(value, 1) for value in generated],
        "behind": [[round(value, 2) for value in flow.row(FIRST_LAG + lag)] for lag in range(LAGS)],
        "generated_now": round(generated[-1], 1) if generated else None,
        "trained_now": None if trained is None else round(trained, 1),
        "buffered": [[round(at, 3), held] for at, held, _ in thinned(story.folds.batches.occupancy, MOST_POINTS)],
    }


def _entry(story: Story, entry: TrajectoryEntry) -> dict[str, Any]:
    fate, run = story.trajectories.fate(entry), story.run
    said = {
        Fate.OPEN: run.waits(entry.name) or "on its way",
        Fate.DROPPED: entry.dropped,
        Fate.EVALUATED: {True: "right", False: "wrong", None: "scored"}[entry.correct],
        Fate.TRAINED: f"trained on for version {entry.consumed_for}",
    }[fate]
    return {
        "name": entry.name,
        "prompt": entry.prompt,
        "fate": str(fate),
        "said": said,
        "at_s": round(entry.at_s, 3),
        "replica": entry.replica,
        "tokens": entry.tokens,
        "reward": entry.reward,
        "correct": entry.correct,
        "cut": entry.truncated,
    }
