"""The ranker of a simulation: it knows how long the responses to a prompt will be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tailrace import contracts as c
from tailrace.fleetsim.world import World

if TYPE_CHECKING:
    from tailrace.fleetsim.host import VirtualMember


class RankerModel:
    """Predicts the mean length of a prompt's own samples before lengths drift, which no real ranker does better."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._member: VirtualMember | None = None

    def begin(self, member: VirtualMember) -> None:
        self._member = member

    def starts_s(self, incarnation: int) -> float:
        del incarnation
        return 0.0

    def ready(self) -> dict[str, Any]:
        return {}

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Answer each `Predict`."""
        for command in commands:
            if isinstance(command, c.Predict):
                self.predict(command)

    def predict(self, command: c.Predict) -> None:
        """Answer for all prompts of a command together, after the fleet's `delays.predict_s`."""
        self.later(self._world.fleet.delays.predict_s, [self.length(prompt, command.seq) for prompt in command.prompts])

    def length(self, prompt: int, answers: int) -> c.Predicted:
        """The answer for a prompt: the mean response tokens of its samples, and those of the longest."""
        tokens = self._world.tokens
        group = tokens.workload.group(prompt, tokens.samples)
        lengths = [sum([turn[0] for turn in sample.turns]) for sample in group]
        mean = max(1.0, sum(lengths) / len(lengths))
        return c.Predicted(prompt, mean, answers, max(mean, max(lengths)))

    def later(self, after_s: float, answers: Sequence[c.Event]) -> None:
        """Say something after a while, if it is still alive then."""
        if after_s:
            self._world.time.at(self._world.time.now() + after_s, self._say, (self._member, answers))
        else:
            self._say((self._member, answers))

    def _say(self, said: tuple[VirtualMember | None, Sequence[c.Event]]) -> None:
        member, answers = said
        if member is not None and member is self._member:
            member.say(list(answers))

    def die(self) -> None:
        self._member = None

    def hang(self) -> None:
        self.die()

    def stall(self) -> None:
        """It has no engine."""
