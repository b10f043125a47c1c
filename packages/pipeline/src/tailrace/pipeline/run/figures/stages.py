"""What provisioning `balanced` may begin with, from a run's log: seconds of training on a batch, and lengths of responses."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean

from tailrace import contracts as c
from tailrace.controller.members import TRAINER
from tailrace.pipeline.run.eventlog import Instant

_STEPS, _RESPONSES = 8, 4_096  # the last ones, since both change as the model learns
QUANTILES = 50  # with fewer, the longest are missing, on which the time of a batch depends


@dataclass(frozen=True, slots=True)
class StageFigures:
    """Figures of the end of a run.

    Args:
        train_s: mean seconds for which all of the trainer computed on a batch; None if it trained on none.
        lengths: generated tokens of responses at equal distances in the distribution, shortest first; empty if none finished.
        kv_tokens: tokens that the KV cache of a replica holds; 0 if none says.
    """

    train_s: float | None
    lengths: tuple[int, ...]
    kv_tokens: int = 0


def stage_figures(log: Iterable[Instant], cells: int = 1) -> StageFigures:
    """The figures of a log.

    Args:
        cells: of the trainer: what one of them computes takes all of them a share of its seconds.
    """
    training: set[str] = set()
    responses = CompleteResponses()
    lengths: deque[int] = deque(maxlen=_RESPONSES)
    steps: deque[float] = deque(maxlen=_STEPS)
    added_s, kv_tokens = 0.0, 0
    for instant in log:
        for event in instant.events:
            complete = responses.heard(event)
            if complete is not None and complete[0] in training:
                training.discard(complete[0])
                lengths.append(max(1, complete[1]))
            match event:
                case c.Snapshot(kv_capacity_tokens=told):
                    kv_tokens = told or kv_tokens
                case c.Accumulated(metrics=metrics, cell=cell):
                    added_s += metrics.get("wall_s", 0.0) / (1 if cell is None else cells)
                case c.Up(role=role) if role == TRAINER:
                    added_s = 0.0  # it lost what it had of a batch, and is given that again
                case c.Stepped(metrics=metrics):
                    steps.append(added_s + metrics.get("wall_s", 0.0))
                    added_s = 0.0
        for command in instant.commands:
            if isinstance(command, c.Route):
                responses.routed(command.trajectories)
                training.update(ref.trajectory for ref in command.trajectories if ref.purpose is c.Purpose.TRAIN)
    return StageFigures(fmean(steps) if steps else None, at_equal_distances(sorted(lengths)), kv_tokens)


def at_equal_distances(ordered: Sequence[int], count: int = QUANTILES) -> tuple[int, ...]:
    """`count` evenly spaced quantiles of ascending lengths; empty if there are no lengths."""
    places = ((2 * place + 1) * len(ordered) // (2 * count) for place in range(count if ordered else 0))
    return tuple(ordered[place] for place in places)


class CompleteResponses:
    """A fold that says how long complete responses are, without what environments answered."""

    def __init__(self) -> None:
        self._answered: Counter[str] = Counter()  # tokens by trajectory
        self._ended: dict[str, int] = {}  # tokens at the end of a turn that is not answered yet

    def heard(self, event: c.Event) -> tuple[str, int] | None:
        """The trajectory whose response is complete with this event, and the tokens that the model generated."""
        if isinstance(event, c.TurnEnded):
            self._ended[event.trajectory] = event.tokens
            return None
        if not isinstance(event, c.Finished | c.Turned):
            return None
        name = event.trajectory
        ended = self._ended.pop(name, event.tokens)
        if isinstance(event, c.Turned):
            self._answered[name] += event.tokens - ended
            if not event.done:
                return None
        return name, event.tokens - self._answered.pop(name, 0)

    def routed(self, refs: Iterable[c.TrajectoryRef]) -> None:
        """Take in what is routed: what has no tokens begins, perhaps anew."""
        for ref in refs:
            if not ref.kept:
                self._answered.pop(ref.trajectory, None)
                self._ended.pop(ref.trajectory, None)


@dataclass(slots=True)
class LaunchedGroup:
    """A group of training.

    Args:
        first: the member that was routed first.
        version: of the weights that its replica served then.
        responses: of each member that ended, the tokens that the model generated, at least 1, and whether a limit ended it.
            After a crash one may end again: the last time counts.
    """

    first: c.TrajectoryRef
    version: int
    responses: dict[str, tuple[int, bool]] = field(default_factory=dict)


class LaunchedGroups:
    """A fold over the instants of a log: `of` has the groups of training by their number."""

    def __init__(self) -> None:
        self.of: dict[int, LaunchedGroup] = {}
        self._serves: dict[str, int] = {}
        self._group_of: dict[str, LaunchedGroup] = {}
        self._responses = CompleteResponses()

    def observe(self, events: Sequence[c.Event], commands: Sequence[c.Command]) -> list[LaunchedGroup]:
        """Take in an instant. Returns the groups that are launched in it."""
        for event in events:
            if isinstance(event, c.Pulled):
                self._serves[event.replica] = event.version
            complete = self._responses.heard(event)
            if complete is not None and complete[0] in self._group_of and complete[1] > 0:
                assert isinstance(event, c.Finished | c.Turned)  # only these complete one
                over = event.reason is c.FinishReason.LENGTH
                self._group_of[complete[0]].responses[complete[0]] = complete[1], over
        known = len(self.of)
        for command in commands:
            if isinstance(command, c.Route):
                self._responses.routed(command.trajectories)
                for ref in command.trajectories:
                    if ref.purpose is c.Purpose.TRAIN:
                        new = LaunchedGroup(ref, self._serves.get(command.replica, 0))
                        self._group_of[ref.trajectory] = self.of.setdefault(ref.group, new)
        return list(islice(self.of.values(), known, None))
