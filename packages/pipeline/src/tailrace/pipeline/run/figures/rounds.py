"""Figures of the rounds of a run, folded from its log: kinds, seconds, and the tokens that speculation threw away.

A round is the batch that a `Step` takes, with the groups that were launched for it. What was launched since the batch before
and did not come into it was raced for it: deferred groups, and surplus samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace import contracts as c
from tailrace.controller.members import TRAINER
from tailrace.controller.spec import PipelineSpec
from tailrace.pipeline.run.figures.batches import mean
from tailrace.pipeline.run.figures.stages import CompleteResponses

_SPECULATED = frozenset({c.Why.SURPLUS_SAMPLE, c.Why.SURPLUS_GROUP, c.Why.DEFERRED})


@dataclass(slots=True)
class PastRound:
    """A round that was trained on, or is being.

    Args:
        version: the version that its batch makes.
        kind: ``"short"`` or ``"long"``.
        prompts: index in the stream of the prompt of each group that it kept.
        began_s: when its first trajectory was routed, on the run's clock.
        given_s: when the last of it was given to the trainer.
        ended_s: when the step was done; None until then.
        deferred: prompts that lost the race and come again.
        tokens: response tokens that were trained on.
        wasted: response tokens of samples and groups that lost the race, as far as the store had them.
    """

    version: int
    kind: str
    prompts: tuple[int, ...]
    began_s: float
    given_s: float
    ended_s: float | None = None
    deferred: int = 0
    tokens: int = 0
    wasted: int = 0


@dataclass(slots=True)
class _Group:
    prompt: int
    began_s: float
    tokens: dict[str, int] = field(default_factory=dict)  # of each trajectory that has finished


class RoundFigures:
    """A fold over the instants of a log. Where batching knows no rounds, there are none, but waste there may be.

    `used` says whether batching launches rounds. `rounds` are those that stand, in order: what a crash of the trainer undid is
    gone. `streamed` counts groups whose gradients were computed before their batch was complete, `scale_downs` how often
    replicas lent devices to the trainer, `resizes` replicas that were given another number of devices, `generated` and `wasted`
    response tokens. `resized_s` has the seconds of each resize until the replica was up.

    Args:
        spec: the pipeline.
    """

    def __init__(self, spec: PipelineSpec) -> None:
        self.used = spec.batching.open().launches_rounds()
        self.rounds: list[PastRound] = []
        self.generated = self.wasted = self.streamed = self.resizes = self.scale_downs = 0
        self.resized_s: list[float] = []
        self._resizing: dict[int, float] = {}  # when each command that is not answered was sent
        self._groups: dict[int, _Group] = {}
        self._group_of: dict[str, int] = {}
        self._responses = CompleteResponses()
        self._accumulated: list[str] = []
        self._pending: dict[int, tuple[c.Why, Sequence[str]]] = {}  # aborts whose tokens the store has not said
        self._consumed: dict[int, dict[int, _Group]] = {}  # groups of versions that the trainer may fall back behind
        self._oldest: dict[int, int] = {}  # version that a checkpoint lets the trainer go back to
        self._deferred = self._waste = 0  # since the last round

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command]) -> None:
        """Take in one instant."""
        for event in events:
            complete = self._responses.heard(event)
            if complete is not None and complete[0] in self._group_of:
                self._finished(*complete)
            match event:
                case c.Discarded(answers=seq, tokens=tokens):
                    self.generated += tokens
                    why, _ = self._pending.pop(seq, (None, ()))
                    if why in _SPECULATED:
                        self._throw_away(tokens)
                case c.Stepped(version=version):
                    for one in self.rounds:
                        if one.version == version:
                            one.ended_s = now
                case c.Up(role=role, version=version) if role == TRAINER:
                    self._fall_back(version or 0)
                case c.Up(answers=seq) if seq in self._resizing:
                    self.resized_s.append(now - self._resizing.pop(seq))
                case c.Durable(version=version):
                    oldest = self._oldest.pop(version, -1)
                    self._consumed = {made: groups for made, groups in self._consumed.items() if made > oldest}
        self.scale_downs += any(isinstance(command, c.Lend) for command in commands)
        for command in commands:
            match command:
                case c.Route(trajectories=refs):
                    self._responses.routed(refs)
                    self._route(now, refs)
                case c.Abort(seq=seq, trajectories=names, reason=reason):
                    self._abort(seq, names, reason.why)
                case c.Accumulate(trajectories=names):
                    self._accumulated += names
                    self.streamed += len({self._group_of[name] for name in names if name in self._group_of})
                case c.Step(version=version, mini_batches=parts, round=kind):
                    self._step(now, version, kind, [*self._accumulated, *(name for part in parts for name in part)])
                case c.Resize(seq=seq):
                    self.resizes += 1
                    self._resizing[seq] = now
                case c.Checkpoint(version=version, keep=keep):
                    self._oldest[version] = min((*keep, version))

    def plain(self) -> dict[str, Any]:
        """The figures as fields of a summary."""
        short, long = ([one for one in self.rounds if one.kind == kind] for kind in ("short", "long"))
        return {
            "rounds_short": len(short),
            "rounds_long": len(long),
            "step_s_short": _seconds(self.rounds, "short"),
            "step_s_long": _seconds(self.rounds, "long"),
            "speculation_waste": round(self.wasted / self.generated, 4) if self.generated else 0.0,
            "streamed_groups": self.streamed,
            "scale_downs": self.scale_downs,
            "resizes": self.resizes,
            "resize_s": round(mean(self.resized_s), 3),
        }

    def _route(self, now: float, refs: Iterable[c.TrajectoryRef]) -> None:
        for ref in refs:
            if ref.purpose is c.Purpose.TRAIN:
                group = self._groups.get(ref.group)
                if group is None:
                    group = self._groups[ref.group] = _Group(ref.prompt, now)
                self._group_of[ref.trajectory] = ref.group

    def _finished(self, name: str, tokens: int) -> None:
        group = self._groups[self._group_of[name]]
        self.generated += tokens - group.tokens.get(name, 0)
        group.tokens[name] = tokens

    def _abort(self, seq: int, names: Sequence[str], why: c.Why) -> None:
        again = (why, names) in self._pending.values()  # the store is a new process, and is told again
        self._pending[seq] = why, names
        if again or why is c.Why.VERSION_GONE:  # its trajectories begin anew, in the same group
            return
        groups = {name: self._group_of.pop(name) for name in names if name in self._group_of}
        if why in _SPECULATED:
            self._throw_away(sum(self._groups[group].tokens.pop(name, 0) for name, group in groups.items()))
        if why is not c.Why.SURPLUS_SAMPLE:  # it is of one whole group
            self._deferred += why is c.Why.DEFERRED
            for group in set(groups.values()):
                del self._groups[group]

    def _throw_away(self, tokens: int) -> None:
        self.wasted += tokens
        self._waste += tokens

    def _step(self, now: float, version: int, kind: str, names: Sequence[str]) -> None:
        indices = dict.fromkeys(self._group_of[name] for name in names if name in self._group_of)
        taken = self._consumed[version] = {index: self._groups.pop(index) for index in indices}
        members = list(taken.values())
        for name in names:
            self._group_of.pop(name, None)
        self._accumulated = []
        if members and self.used:
            prompts = tuple(member.prompt for member in members)
            tokens = sum(sum(member.tokens.values()) for member in members)
            began = min(member.began_s for member in members)
            self.rounds.append(PastRound(version, kind, prompts, began, now, None, self._deferred, tokens, self._waste))
        self._deferred = self._waste = 0

    def _fall_back(self, version: int) -> None:
        self.rounds = [one for one in self.rounds if one.version <= version]
        self._accumulated = []
        for undone in [made for made in self._consumed if made > version]:
            groups = self._consumed.pop(undone)
            self._groups |= groups
            self._group_of |= {name: index for index, group in groups.items() for name in group.tokens}


def _seconds(rounds: Sequence[PastRound], kind: str) -> float:
    """Mean seconds from the end of the step before, or from the first routing, to the end of the step."""
    before, found = None, []
    for one in rounds:
        if one.ended_s is not None and one.kind == kind:
            found.append(one.ended_s - (one.began_s if before is None else before))
        before = one.ended_s
    return round(mean(found), 3)
