"""Members of a fuzz case: as in a simulation, and the checks see what they do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from tailrace import contracts as c
from tailrace.fleetsim.host.simulator import Models
from tailrace.fleetsim.host.world import World
from tailrace.fleetsim.members.data import Data
from tailrace.fleetsim.members.environment import EnvironmentModel
from tailrace.fleetsim.members.ranker import RankerModel
from tailrace.fleetsim.members.relays import Relays
from tailrace.fleetsim.members.replica import ModelledReplica
from tailrace.fleetsim.members.scorer import ScorerModel
from tailrace.fleetsim.members.trainer import Trainer
from tailrace.fuzz.case import Case, EnvironmentsCase
from tailrace.fuzz.checks.data_plane import DataPlane, Lineage

if TYPE_CHECKING:
    from tailrace.fleetsim.host.host import VirtualMember


class FuzzReplica(ModelledReplica):
    """A replica whose weights and work are watched, and whose engine refuses some prompts."""

    __slots__ = ("_plane", "_refuses")

    def __init__(
        self, world: World, relays: Relays, name: str, plane: DataPlane, refuses: Callable[[int], bool]
    ) -> None:
        self._plane, self._refuses = plane, refuses
        super().__init__(world, relays, name, world.fleet.speed(name))

    def _route(self, command: c.Route) -> None:
        refused = [ref for ref in command.trajectories if self._refuses(ref.prompt)]
        if not refused:
            super()._route(command)
            return
        taken = tuple([ref for ref in command.trajectories if not self._refuses(ref.prompt)])
        self._say([c.Refused(self.id, ref.trajectory, "its prompt is too long", command.seq) for ref in refused])
        super()._route(dataclasses.replace(command, trajectories=taken))  # a snapshot must not come before the refusals
        self.flush()
        self.idle_now()

    def weights_gone(self) -> None:
        self._plane.drops_weights(self.id)

    def weights_arrived(self, version: int) -> None:
        self._plane.pulled(self.id, version)

    def _pull(self, command: c.Pull) -> None:
        torn = self.world.injuries.torn_pulls[self.id] > 0
        super()._pull(command)
        self._plane.pulls(self.id, command, torn=torn)


class FuzzTrainer(Trainer):
    """A trainer whose weights are numbered."""

    def __init__(self, world: World, relays: Relays, lineage: Lineage) -> None:
        self._lineage = lineage
        super().__init__(world, relays)

    def loaded(self, version: int) -> None:
        self._lineage.loads(version)

    def took(self, version: int) -> None:
        self._lineage.takes(version)

    def stages(self, version: int) -> None:
        self._lineage.stages(version)

    def shows(self, version: int) -> None:
        self._lineage.shows(version)

    def saves(self, version: int) -> None:
        self._lineage.saves(version)

    def trained(self, version: int) -> None:
        del version
        self._lineage.stepped()


PREDICTED_WITHIN_S = 10.0
MOST_PREDICTED = 400  # tokens: twice what any case allows
UNANSWERED = 0.02  # of the prompts that it is asked for
REFUSED = 0.1


class FuzzRanker(RankerModel):
    """A ranker that is right by chance alone, answers each prompt at a time of its own, some twice, and some not at all.

    Args:
        random: draws what it says.
        share: share of the prompts that it has a length for.
    """

    def __init__(self, world: World, random: Random, share: float) -> None:
        super().__init__(world)
        self._random, self._share = random, share

    def predict(self, command: c.Predict) -> None:
        random = self._random
        for prompt in command.prompts:
            for _ in range(random.choice([1, 1, 1, 2])):
                if random.random() < UNANSWERED:  # its deadline passes, and another ranker takes its place
                    continue
                answer: c.Event = c.PredictionFailed(prompt, "found nan tokens", command.seq)
                if random.random() < self._share * (1 - REFUSED):
                    tokens = float(random.randint(1, MOST_PREDICTED))
                    p90 = random.choice([None, tokens, tokens * (1 + random.random())])
                    mean = None if p90 is None else (tokens + p90) / 2  # nothing drawn: old seeds draw the same
                    answer = c.Predicted(prompt, tokens, command.seq, p90, mean)
                self.later(random.choice([0.0, random.random() * PREDICTED_WITHIN_S]), [answer])


class FuzzScorer(ScorerModel):
    """A scorer whose verifiers take their own time each, break, and say nothing more of some."""

    def __init__(self, world: World, random: Random, case: Case) -> None:
        super().__init__(world)
        self._random, self._breaks, self._unscored = random, case.scoring_failures, case.unscored

    def score(self, command: c.Score) -> None:
        world, random = self._world, self._random
        for name in command.trajectories:
            known = world.tokens.trajectories.get(name)
            takes_s = 2 * random.random() * world.fleet.delays.reward_s
            takes_s += known.sample.reward_s if known is not None else 0.0
            world.time.at(world.time.now() + takes_s, self._score_one, (self.member, name, command.seq))

    def _score_one(self, scoring: tuple[VirtualMember, str, int]) -> None:
        member, name, seq = scoring
        known = self._world.tokens.trajectories.get(name)
        if member is not self.member or known is None:
            return
        if self._unscored and self._random.random() < self._unscored:
            return
        broken = self._world.time.now() < self._world.injuries.scoring_broken_until_s
        if broken or self._random.random() < self._breaks:
            member.say([c.ScoringFailed(name, "the verifier broke", seq)])
        else:
            member.say([c.Scored(name, known.sample.reward, seq)])


class FuzzData(Data):
    """A data role whose store takes its time to drop what an abort names, one abort after the other."""

    def __init__(self, world: World, random: Random, drops_s: float) -> None:
        super().__init__(world)
        self._random, self._drops_s, self._dropped_s = random, drops_s, 0.0
        self._process: VirtualMember | None = None

    def submit(self, commands: Sequence[c.Command]) -> None:
        if not self._drops_s:
            super().submit(commands)
            return
        time = self._world.time
        if self._process is not self.member:
            self._process, self._dropped_s = self.member, 0.0  # what the one before it had still to drop went with it
        for command in commands:
            if isinstance(command, c.Abort):
                self._dropped_s = max(self._dropped_s, time.now()) + self._random.random() * self._drops_s
                time.at(self._dropped_s, self._drop, (self.member, command))
            else:
                super().submit([command])

    def _drop(self, dropping: tuple[VirtualMember, c.Abort]) -> None:
        member, command = dropping
        if member is self.member and member.lives:
            super().submit([command])


class FuzzEnvironment(EnvironmentModel):
    """A member whose calls take their own time each, fail, are lost with their sessions, or are never answered.

    Args:
        random: draws what it does.
        case: how often.
    """

    def __init__(self, world: World, id_: str, random: Random, case: EnvironmentsCase) -> None:
        super().__init__(world, id_)
        self._random, self._case = random, case

    def latency_s(self, drawn_s: float) -> float:
        return drawn_s * 2 * self._random.random()

    def answer(self, name: str, seq: int, seconds: float) -> None:
        random, case = self._random, self._case
        gone = name not in self.sessions and self.world.tokens.trajectories[name].answered > 0
        if random.random() < case.unanswered:  # its deadline passes, and another member takes its place
            return
        if gone and random.random() < case.lost:
            self.gives_up(name, c.CallFailed(name, "its session cannot be replayed", seq, lost=True))
        elif random.random() < case.breaks:
            self.gives_up(name, c.CallFailed(name, random.choice(["no answer within 4 s", "found nonsense"]), seq))
        else:
            super().answer(name, seq, seconds)


class FuzzModels(Models):
    """The members of a case.

    Args:
        case: how often they fail.
        random: draws what verifiers and the store do.
        predicting: draws what is predicted.
        answering: draws what environments do.
    """

    def __init__(
        self,
        world: World,
        plane: DataPlane,
        lineage: Lineage,
        case: Case,
        random: Random,
        *,
        predicting: Random,
        answering: Random,
    ) -> None:
        self._plane, self._lineage, self._case, self._random = plane, lineage, case, random
        self._predicting, self._answering = predicting, answering
        super().__init__(world)

    def new_trainer(self) -> FuzzTrainer:
        return FuzzTrainer(self.world, self.relays, self._lineage)

    def new_ranker(self) -> FuzzRanker:
        return FuzzRanker(self.world, self._predicting, self._case.predictions)

    def new_data(self) -> FuzzData:
        return FuzzData(self.world, self._random, self._case.drops_s)

    def new_environment(self, id_: str) -> FuzzEnvironment:
        return FuzzEnvironment(self.world, id_, self._answering, self._case.environments)

    def new_scorer(self) -> FuzzScorer:
        return FuzzScorer(self.world, self._random, self._case)

    def new_replica(self, name: str) -> FuzzReplica:
        return FuzzReplica(self.world, self.relays, name, self._plane, self._case.refuses)
