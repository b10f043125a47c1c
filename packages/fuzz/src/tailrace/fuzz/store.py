"""The trajectory store of a fuzz case: beside the tokens, what a store does when members or the driver die.

A trajectory whose end was never reported is handed back complete when somebody begins it again; what was consumed for versions
that the trainer lost is held again; after the death of the driver the store says what survived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tailrace import contracts as c
from tailrace.fleetsim.engine import Work
from tailrace.fleetsim.host.tokens import SimulatedTrajectory, Tokens
from tailrace.fleetsim.workload.workload import Workload
from tailrace.fuzz.checks.data_plane import DataPlane


class Store(Tokens):
    """Tokens that tell the checks about every beginning and end.

    Args:
        plane: the check of invariants 3 and 4.
        ends_in_environment: whether the environment of a trajectory is asked after its last turn too, and ends it.

    `given_up` says whether the controller has given a replica up that may live until it begins anew.
    """

    def __init__(
        self,
        workload: Workload,
        samples: int,
        *,
        mixes_versions: bool,
        plane: DataPlane,
        ends_in_environment: Callable[[str], bool],
    ) -> None:
        self._ends_in_environment = ends_in_environment
        super().__init__(workload, samples, mixes_versions=mixes_versions)
        self._plane = plane
        self.given_up: Callable[[str], bool] = lambda _: False
        self._begun: dict[str, int] = {}  # by the version that they were begun with last
        self._consumed: dict[str, int] = {}

    def works(self, refs: Sequence[c.TrajectoryRef], replica: str, version: int, now: float) -> list[Work]:
        works = super().works(refs, replica, version, now)
        for ref, work in zip(refs, works, strict=True):
            self._begun[ref.trajectory] = version
            self._plane.begins(ref, work, replica, version)
        return works

    def fence(self, replica: str, name: str) -> None:
        if self.given_up(replica):  # else the check finds who was to stop and did not
            super().fence(replica, name)

    def keep(self, left: Iterable[tuple[str, int]]) -> None:
        left = list(left)
        super().keep(left)
        for name, done in left:
            self._plane.leaves(name, done)

    def complete(self, finished: Iterable[tuple[float, str, int]]) -> None:
        finished = list(finished)
        super().complete(finished)
        for _, name, tokens in finished:
            self._plane.completes(name, tokens, wanted=name in self.trajectories)

    def turns_ended(self, finished: Sequence[tuple[float, str, int]]) -> dict[str, int]:
        ended = super().turns_ended(finished)
        for name, tokens in ended.items():
            self._plane.ends_turn(name, tokens)
        return ended

    def asks(self, name: str, known: SimulatedTrajectory) -> bool:
        return super().asks(name, known) or (len(known.sample.turns) > 1 and self._ends_in_environment(name))

    def observe(self, name: str, now: float) -> bool:
        waited = self.trajectories[name].ended_s is not None
        done = super().observe(name, now)
        if waited:
            self._plane.observes(name, done=done)
        return done

    def dropped(self, replica: str, names: Iterable[str]) -> None:
        self._plane.drops(replica, names)

    def consume(self, names: Iterable[str], version: int) -> None:
        self._consumed.update(dict.fromkeys(names, version))

    def roll_back(self, version: int) -> None:
        self._consumed = {name: made for name, made in self._consumed.items() if made <= version}

    def forget(self, names: Iterable[str]) -> None:
        names = list(names)
        super().forget(names)
        for name in names:
            self._begun.pop(name, None)
            self._consumed.pop(name, None)
        self._plane.forgets(names)

    def survivors(self, version: int) -> tuple[tuple[str, ...], dict[str, tuple[int, int]]]:
        self.roll_back(version)
        known = self.trajectories.items()
        held = tuple(name for name, state in known if state.response and name not in self._consumed)
        partial = {
            name: (state.oldest if state.kept else self._begun[name], state.kept)
            for name, state in known
            if not state.response
        }
        return held, partial
