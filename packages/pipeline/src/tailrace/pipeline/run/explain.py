"""Why a trajectory went where it went: its story, from the event log.

The controller is deterministic, so its decisions are not stored: the log is replayed through a controller that this time keeps
a note of every decision, and what concerns one trajectory is picked out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tailrace import contracts as c
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.controller.ledger import GroupPhase
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import read_events


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a trajectory's story.

    Args:
        at_s: seconds on the run's clock.
        version: the trainer's version then.
        text: what happened or was decided.
    """

    at_s: float
    version: int
    text: str


def explain(directory: RunDirectory, config: RunConfig, trajectory: str) -> list[Line]:
    """Everything that happened to a trajectory and was decided about it, in order.

    Raises:
        RunDirectoryError: the run never admitted such a trajectory.
    """
    controller = Controller(build_spec(config), relays=config.relay.count)
    controller.outbox.notes = []
    story: list[Line] = []
    group = _group_of(trajectory)
    known = trained = False
    for now, event in read_events(directory.events):
        texts = list(_event(event, trajectory, controller))
        before = controller.ledger.groups.get(group) if group is not None else None
        phase = before.phase if before is not None else None
        controller.handle(event, now)
        texts += [note.text for note in controller.outbox.notes if trajectory in note.trajectories]
        controller.outbox.notes.clear()
        if not known and controller.ledger.get(trajectory) is not None:
            known = True
            texts.insert(0, "admitted: it waits in the pool")
        after = controller.ledger.groups.get(group) if group is not None else None
        texts += _group_changed(phase, after.phase if after is not None else None)
        if after is not None and after.phase is GroupPhase.TRAINED and not trained:
            trained = True
            texts.append(f"its batch is trained on: version {after.consumed_for}")
        story += [Line(now, controller.learner.version, text) for text in texts]
    if not known:
        last = controller.ledger.counts.admitted - 1
        raise RunDirectoryError(
            f"{directory.root}: found no trajectory {trajectory!r}, expected GROUP.SAMPLE with a group from 0 to {last}, "
            "such as 0.0"
        )
    return story


def _group_of(trajectory: str) -> int | None:
    group, _, sample = trajectory.partition(".")
    return int(group) if group.isdigit() and sample.isdigit() else None


def _event(event: c.Event, trajectory: str, controller: Controller) -> Iterator[str]:
    if getattr(event, "trajectory", None) != trajectory or controller.ledger.get(trajectory) is None:
        return  # of another, or of one that was dropped meanwhile
    match event:
        case c.Finished(replica=replica, tokens=tokens, reason=reason):
            yield f"finished on {replica} with {tokens} tokens ({reason})"
        case c.Interrupted(replica=replica, tokens_kept=kept):
            yield f"left {replica} with {kept} tokens kept; it waits in the pool"
        case c.Scored(reward=reward):
            yield f"scored: reward {reward:g}"
        case c.ScoringFailed(reason=reason):
            state = controller.ledger.get(trajectory)
            yield f"scoring failed for the {(state.scoring_attempts if state else 0) + 1}. time: {reason}"


def _group_changed(before: GroupPhase | None, after: GroupPhase | None) -> Iterator[str]:
    if before is GroupPhase.GENERATING and after is GroupPhase.BUFFERED:
        yield "its group is complete and waits for the trainer"
    elif before in (GroupPhase.TRAINING, GroupPhase.TRAINED) and after is GroupPhase.BUFFERED:
        yield "its group waits for the trainer again: the trainer fell back to a checkpoint"
