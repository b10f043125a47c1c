"""Why a trajectory went where it went: its story, from the event log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tailrace import contracts as c
from tailrace.controller.members import ENVIRONMENT, REPLICA, TRAINER
from tailrace.controller.trajectories import GroupPhase
from tailrace.controller.view import TrajectoryRow
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import Instant
from tailrace.pipeline.run.replay import controller_of, replayed
from tailrace.report.fold.trajectories import ANEW
from tailrace.report.reason_words import here, why

_LEAVES = (c.Finished, c.TurnEnded, c.Interrupted, c.Refused)
_LONG_S = 0.1  # shorter scores are not worth telling


@dataclass(frozen=True, slots=True)
class StoryLine:
    """One line of a trajectory's story.

    Args:
        at_s: seconds on the run's clock.
        version: the trainer's version then.
        text: what happened or was decided.
    """

    at_s: float
    version: int
    text: str


def explain(directory: RunDirectory, trajectory: str) -> list[StoryLine]:
    """Everything that happened to a trajectory and was decided about it, in order.

    Raises:
        RunDirectoryError, ConfigError: the run never gave such a trajectory to a replica, or is damaged.
    """
    controller = controller_of(directory)
    run = controller.view
    story: list[StoryLine] = []
    others: dict[str, c.Purpose] = {}
    before: TrajectoryRow | None = None
    stops: c.Why | None = None
    attempts = _Attempts(trajectory)
    for instant in replayed(controller, directory.events, version=directory.version):
        texts: list[str] = []
        for event in instant.events:
            texts += _event(event, trajectory, before, stops)
            if isinstance(event, _LEAVES) and event.trajectory == trajectory:
                stops = None
        known = run.trajectory(trajectory) if before is not None or trajectory in _routed(instant) else None
        if known is not None:
            texts += _moved_on(None if before is None else before.group, known)
        texts += _commands(instant, trajectory, known or before, _staleness(run.version, known or before))
        texts += attempts.observe(instant)
        stops = _told(instant, trajectory, stops if known is not None and known.replica is not None else None)
        story += [StoryLine(instant.now, run.version, text) for text in texts]
        before = known
        if not story:
            others |= _routed(instant)
    if not story:
        raise RunDirectoryError(
            f"{directory.root}: found no trajectory {trajectory!r}, expected one that a replica was given"
            f"{_such_as(trajectory, others)}"
        )
    return story


class _Attempts:
    """Follows the groups of a trajectory's prompt: one that lost the race of its round comes again as another group."""

    def __init__(self, trajectory: str) -> None:
        self._trajectory = trajectory
        self._prompts: dict[int, int] = {}  # of each group
        self._groups: dict[str, int] = {}  # of each trajectory
        self._deferred: dict[int, int] = {}  # the last group of a prompt that was deferred
        self._own: tuple[int, int] | None = None  # its prompt and group

    def observe(self, instant: Instant) -> Iterator[str]:
        """What an instant says of other groups of the prompt."""
        for command in instant.commands:
            match command:
                case c.Route(trajectories=refs):
                    for ref in refs:
                        yield from self._routed(ref)
                case c.Abort(trajectories=names, reason=reason) if reason.why is c.Why.DEFERRED:
                    for group in {self._groups[name] for name in names if name in self._groups}:
                        self._deferred[self._prompts[group]] = group

    def _routed(self, ref: c.TrajectoryRef) -> Iterator[str]:
        if ref.purpose is not c.Purpose.TRAIN:
            return
        new = ref.group not in self._prompts
        self._prompts[ref.group], self._groups[ref.trajectory] = ref.prompt, ref.group
        if ref.trajectory == self._trajectory and self._own is None:
            self._own = ref.prompt, ref.group
            if ref.prompt in self._deferred:
                yield f"its prompt was deferred before, as group {self._deferred[ref.prompt]}: this is its long round"
        elif new and self._own is not None and ref.prompt == self._own[0] and ref.group != self._own[1]:
            yield f"its prompt comes again, as group {ref.group}"


def _routed(instant: Instant) -> dict[str, c.Purpose]:
    """The trajectories that an instant gives to replicas."""
    routes = [command for command in instant.commands if isinstance(command, c.Route)]
    return {ref.trajectory: ref.purpose for route in routes for ref in route.trajectories}


def _such_as(wanted: str, others: Mapping[str, c.Purpose]) -> str:
    """The trajectories of the group that was named; or else the first one of training, or of an evaluation."""
    group = sorted((name for name in others if name.startswith(f"{wanted}.")), key=lambda name: (len(name), name))
    if group:
        return f": {' ... '.join(dict.fromkeys((group[0], group[-1])))}"
    trained = (name for name, purpose in others.items() if purpose is c.Purpose.TRAIN)
    example = next(trained, next(iter(others), None))
    return "" if example is None else f", such as {example}"


def _told(instant: Instant, trajectory: str, before: c.Why | None) -> c.Why | None:
    """What its replica was told to stop it for, and it has not answered."""
    told = [
        command.reason.why
        for command in instant.commands
        if isinstance(command, c.Interrupt) and trajectory in command.trajectories
    ]
    return told[-1] if told else before


def _event(
    event: c.Event,
    trajectory: str,
    known: TrajectoryRow | None,
    stops: c.Why | None,
) -> Iterator[str]:
    """What an event says of a trajectory that ran on a replica, or waits for the answer of an environment.

    Args:
        known: it, before the instant.
    """
    if known is None:
        return
    replica, environment = known.replica, known.environment
    match event:
        case c.Down(role=role, id=member, reason=reason) if (role, member) == (REPLICA, replica):
            yield f"{replica} is down: {reason}; it waits in the pool"
        case c.Down(role=role, id=member, reason=reason) if (role, member) == (ENVIRONMENT, environment):
            yield f"environment {member} is down: {reason}; its turn waits for one that is up"
        case c.Resumed():
            yield "the driver died, and the run went on"
        case c.Up(role=role) if role == TRAINER and known.finished:
            yield (
                "the trainer is up again"
                if event.version is None
                else f"the trainer is back at version {event.version}"
            )
        case c.Accumulated(version=version, trajectories=names, cell=cell) if trajectory in names and cell is not None:
            yield f"its gradients were added; the weights change with the last of the batch of version {version}"
    if getattr(event, "trajectory", None) != trajectory:
        return
    match event:
        case c.Finished(tokens=tokens, reason=reason):
            yield f"finished on {event.replica} with {tokens} tokens ({reason}){_too_late(stops)}"
        case c.TurnEnded(tokens=tokens):
            yield f"ended turn {known.answered + 1} on {event.replica} with {tokens} tokens{_too_late(stops)}"
        case c.Turned(turn=turn, tokens=tokens, done=done, seconds=seconds, session=session, reason=reason):
            had = "" if session is c.SessionOrigin.HELD else f", from a session that was {session}"
            ends = f"; that ends it ({reason})" if done else ""
            yield f"its environment answered turn {turn} in {seconds:.2g} s{had}: {tokens} tokens in all{ends}"
        case c.CallFailed(reason=reason, lost=lost):
            yield f"its environment {'lost its session' if lost else 'did not answer'}: {reason}"
        case c.Refused(reason=reason):
            yield f"refused by {event.replica}: {reason}"
        case c.Interrupted(tokens_kept=kept):
            yield f"left {event.replica} with {kept} tokens kept; it waits in the pool"
        case c.Scored(reward=reward, correct=correct, seconds=seconds, over_budget=over):
            said = {None: "", True: ", correct", False: ", not correct"}[correct]
            took = f", in {seconds:.2g} s" if seconds >= _LONG_S else ""
            yield f"scored: reward {reward:g}{said}{took}" + (f"; it was over its budget ({over})" if over else "")
        case c.Rechecked(correct=correct):
            found = "is right: the timeout was false" if correct else "is still not right"
            yield f"scored again with the largest timeout, as a sample: it {found}"
        case c.ScoringFailed(reason=reason):
            yield f"scoring failed: {reason}"


def _too_late(stops: c.Why | None) -> str:
    """An end that comes while a trajectory is told to stop is no end of the interruption's making."""
    if stops is None:
        return ""
    return ", before it could move" if stops is c.Why.MOVED else ", before it was stopped"


def _commands(instant: Instant, trajectory: str, known: TrajectoryRow | None, staleness: str) -> Iterator[str]:
    for command in instant.commands:
        match command:
            case c.Route(replica=replica, trajectories=refs):
                for place, ref in enumerate(refs):
                    if ref.trajectory == trajectory:
                        tokens = f", {ref.kept} tokens of it exist" if ref.kept else ""
                        yield f"routed to {replica}: {here(command.reason(place))}{tokens}"
            case c.Call(environment=member, trajectories=names) if trajectory in names and known is not None:
                yield f"environment {member} is to answer turn {known.answered + 1}"
            case c.Interrupt(replica=replica, trajectories=names) if trajectory in names:
                yield f"interrupted on {replica}: {why(command.reason)}"
            case c.Abort(trajectories=names) if trajectory in names:
                anew = command.reason.why in ANEW
                yield f"{'begins anew' if anew else 'dropped'}: {why(command.reason)}"
            case c.Accumulate(version=version, trajectories=names, update=False, cell=cell) if trajectory in names:
                yield f"given to cell {cell} of the trainer{staleness}, which adds its gradients for version {version}"
            case c.Accumulate(version=version, trajectories=names) if trajectory in names:
                yield f"given to the trainer{staleness}, as a part of the batch of version {version}"
            case c.Step(version=version, mini_batches=parts) if any(trajectory in names for names in parts):
                yield f"given to the trainer{staleness}, in the batch of version {version}"


def _staleness(version: int, known: TrajectoryRow | None) -> str:
    """How far the trainer is ahead of a trajectory's oldest version."""
    return "" if known is None or known.version is None else f" at staleness {version - known.version}"


def _moved_on(before: GroupPhase | None, known: TrajectoryRow) -> Iterator[str]:
    """What became of its group in an instant."""
    after = known.group
    if after is None or before is after:
        return
    if after is GroupPhase.TRAINED:
        yield f"trained on: version {known.consumed_for} is made"
    elif after is GroupPhase.BUFFERED and before in (GroupPhase.TRAINING, GroupPhase.TRAINED):
        yield "its group waits for the trainer again"
    elif before is GroupPhase.GENERATING and after is not GroupPhase.GENERATING:
        yield "its group is complete and waits for the trainer"
