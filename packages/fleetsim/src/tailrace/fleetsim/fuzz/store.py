"""The data plane of a fuzz case: beside the tokens, what a trajectory store does when members or the driver die.

A trajectory whose end was never reported is handed back complete when somebody begins it again; what was consumed for versions
that the trainer lost is held again; after the death of the driver the store says what survived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tailrace import contracts as c
from tailrace.fleetsim.engine import Work
from tailrace.fleetsim.fuzz.checks.data_plane import DataPlane
from tailrace.fleetsim.tokens import Tokens
from tailrace.fleetsim.workload.workload import Workload


class Store(Tokens):
    """Tokens that tell the checks about every beginning and end.

    Args:
        plane: the check of invariants 3 and 4.
    """

    def __init__(self, workload: Workload, samples: int, *, mixes_versions: bool, plane: DataPlane) -> None:
        super().__init__(workload, samples, mixes_versions=mixes_versions)
        self._plane = plane
        self._begun: dict[str, int] = {}  # by the version that they were begun with last
        self._consumed: dict[str, int] = {}

    def complete_of(self, refs: Sequence[c.TrajectoryRef]) -> dict[str, int]:
        """Those that are complete already, with their tokens."""
        found = ((ref.trajectory, self.trajectories.get(ref.trajectory)) for ref in refs)
        return {name: known.response for name, known in found if known is not None and known.response}

    def works(self, refs: Sequence[c.TrajectoryRef], replica: str, version: int, now: float) -> list[Work]:
        """See `Tokens.works`."""
        works = super().works(refs, replica, version, now)
        for ref, work in zip(refs, works, strict=True):
            self._begun[ref.trajectory] = version
            self._plane.begins(ref, work, replica, version)
        return works

    def keep(self, left: Iterable[tuple[str, int]]) -> None:
        """See `Tokens.keep`."""
        left = list(left)
        super().keep(left)
        for name, done in left:
            self._plane.leaves(name, done)

    def complete(self, finished: Iterable[tuple[float, str, int]]) -> None:
        """See `Tokens.complete`."""
        finished = list(finished)
        super().complete(finished)
        for _, name, tokens in finished:
            self._plane.completes(name, tokens, wanted=name in self.trajectories)

    def consume(self, names: Iterable[str], version: int) -> None:
        """A batch was trained on."""
        self._consumed.update(dict.fromkeys(names, version))

    def roll_back(self, durable: int) -> None:
        """What was consumed for later versions is available again."""
        self._consumed = {name: version for name, version in self._consumed.items() if version <= durable}

    def forget(self, names: Iterable[str]) -> None:
        """See `Tokens.forget`."""
        names = list(names)
        super().forget(names)
        for name in names:
            self._begun.pop(name, None)
        self._plane.forgets(names)

    def survivors(self, durable: int) -> c.Resumed:
        """What the store holds when the driver has died."""
        self.roll_back(durable)
        held: dict[str, float | None] = {}
        partial: dict[str, tuple[int, int]] = {}
        for name, known in self.trajectories.items():
            if known.response:
                if name not in self._consumed:
                    held[name] = None
            else:
                partial[name] = (known.oldest if known.kept else self._begun[name], known.kept)
        return c.Resumed(durable, held, partial)
