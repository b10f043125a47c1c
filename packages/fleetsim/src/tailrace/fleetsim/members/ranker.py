"""The ranker of a simulation: what it knows of the lengths of responses, how often it errs, and when it learns."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace import contracts as c
from tailrace.fleetsim.fleet.config import RankerFleet
from tailrace.fleetsim.host.host import RoleModel, VirtualMember
from tailrace.fleetsim.host.world import World
from tailrace.fleetsim.noisy_oracle import Noise, expected_recalls, mistaken_for, noise_of
from tailrace.pipeline.roles.ranker import TRAINED, UPDATED

BLOCK = 1_024
"""Prompts in a row of the stream that are ranked together: a ranker that errs takes one for another of its block."""


class RankerModel(RoleModel):
    """It predicts the mean length of a prompt's own samples before lengths drift, which no real ranker does better.

    With a `RankerFleet` it finds only a part of the longest, has to learn first, and forgets. What it says of a prompt follows
    from the workload, the recalls and the version that it learned at; it does not depend on who asks when for what else.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.member: VirtualMember | None = None
        self._table = world.fleet.ranker or RankerFleet()
        self._noise = noise_of(self._table.recalls) if self._table.recalls else None
        self._blocks: dict[tuple[int, Noise], list[tuple[float, float]]] = {}
        self._learned_at: int | None = None if self._table.examples else 0  # version
        self._learned, self._learning = 0, False
        if self._table.examples or self._table.drift:
            world.pulsing.append(self)

    def begin(self, member: VirtualMember) -> None:
        super().begin(member)
        self._learning = False

    def submit(self, commands: Sequence[c.Command]) -> None:
        """Answer each `Predict`."""
        for command in commands:
            if isinstance(command, c.Predict):
                self.predict(command)

    def predict(self, command: c.Predict) -> None:
        """Answer for all prompts of a command together, after the fleet's `delays.predict_s`."""
        self.later(self._world.fleet.delays.predict_s, [self.length(prompt, command.seq) for prompt in command.prompts])

    def length(self, prompt: int, answers: int) -> c.Event:
        """The answer for a prompt: the mean response tokens of its samples, and those of the longest; or those of another."""
        if self._learned_at is None:
            expected = f"{self._table.examples} prompts' worth to learn from"
            return c.PredictionFailed(
                prompt, f"found {self._examples} finished responses, expected {expected}", answers
            )
        noise = self.noise()
        mean, longest = self._true(prompt) if noise is None else self._block(prompt // BLOCK, noise)[prompt % BLOCK]
        return c.Predicted(prompt, mean, answers, longest)

    def noise(self) -> Noise | None:
        """Its errors by now, which grow with the versions since it learned; None if it makes none."""
        versions = max(0, self._world.version - (self._learned_at or 0))
        return None if self._noise is None else self._noise.times((1 + self._table.drift) ** versions)

    # ---- learning -------------------------------------------------------------------------------------------------

    @property
    def _examples(self) -> int:
        return self._world.tokens.latencies

    def pulse(self) -> None:
        """See whether there is enough to learn from, or whether it has drifted too far."""
        if self.member is None or self._learning or not self._due():
            return
        self._learning = True
        at = self._world.time.now() + self._table.learn_s
        self._world.time.at(at, self._has_learned, (self.member, self._world.version))

    def beside(self, slows: float) -> None:
        """It has devices of its own."""

    def _due(self) -> bool:
        if self._learned_at is None:
            return self._examples >= self._table.examples * self._world.fleet.needed
        noise = self.noise()
        if noise is None or noise == self._noise:
            return False
        share = max(self._table.recalls)
        return self._table.recalls[share] - expected_recalls(noise, (share,))[share] > self._table.band

    def _has_learned(self, of: tuple[VirtualMember, int]) -> None:
        member, version = of
        if member is not self.member:
            return  # it died while it learned
        did = TRAINED if self._learned_at is None else UPDATED
        self._learning, self._learned_at = False, version
        self._learned += 1
        member.say([c.Activity("ranker", "0", did, self._learned)])

    # ---- lengths --------------------------------------------------------------------------------------------------

    def _true(self, prompt: int) -> tuple[float, float]:
        """Mean and longest response tokens of a prompt's samples."""
        tokens = self._world.tokens
        lengths = [sum([turn[0] for turn in sample.turns]) for sample in tokens.workload.group(prompt, tokens.samples)]
        mean = max(1.0, sum(lengths) / len(lengths))
        return mean, max(mean, max(lengths))

    def _block(self, number: int, noise: Noise) -> list[tuple[float, float]]:
        """What it predicts for the prompts of a block."""
        found = self._blocks.get((number, noise))
        if found is None:
            true = [self._true(number * BLOCK + at) for at in range(BLOCK)]
            taken = mistaken_for([mean for mean, _ in true], noise, number)
            found = self._blocks[number, noise] = [true[other] for other in taken]
        return found

    # ---- saying it ------------------------------------------------------------------------------------------------

    def later(self, after_s: float, answers: Sequence[c.Event]) -> None:
        """Say something after a while, if it is still alive then."""
        if after_s:
            self._world.time.at(self._world.time.now() + after_s, self._say, (self.member, answers))
        else:
            self._say((self.member, answers))

    def _say(self, said: tuple[VirtualMember | None, Sequence[c.Event]]) -> None:
        member, answers = said
        if member is not None and member is self.member:
            member.say(list(answers))
