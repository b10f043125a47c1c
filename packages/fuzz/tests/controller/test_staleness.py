"""The staleness manager that the controller drives, beside its slow reference: after every operation both hold the same."""

from dataclasses import dataclass

from worlds import expected, play, seeds, world

from tailrace.staleness import Bounded
from tailrace.staleness.bounded import BoundedGate
from tailrace.staleness.testing.reference import ReferenceManager, Row


class MirroredGate(BoundedGate):
    operations = 0

    def __init__(self, manager):
        super().__init__(manager)
        self.reference = ReferenceManager(manager.bound, manager.batch_size, 0, manager.surplus_size)

    def _same(self):
        MirroredGate.operations += 1
        for buffer in self.reference.buffers():
            mine = sorted((entry.key, entry.version, entry.occupied) for entry in self.manager.entries(buffer))
            assert mine == sorted(self.reference.entries(buffer)), f"buffer {buffer} at version {self.manager.version}"

    def start(self, group, version):
        assert self.reference.can_reserve(version)
        super().start(group, version)
        self.reference.reserve(group, version)
        self._same()

    def complete(self, group):
        super().complete(group)
        self.reference.occupy(group)
        self._same()

    def drop(self, group):
        kind = self.manager.occupied(group)
        super().drop(group)
        if kind is not None:
            (self.reference.filter if kind else self.reference.abort)(group)
        self._same()

    def consume(self, candidates, sampler):
        due = {key for key, _, occupied in self.reference.entries(self.manager.version) if occupied}
        batch = super().consume(candidates, sampler)
        assert set(batch) == due
        self.reference.consume()
        self._same()
        return batch

    def reset(self, version, started):
        refused = super().reset(version, started)
        manager = self.manager
        self.reference = ReferenceManager(manager.bound, manager.batch_size, version, manager.surplus_size)
        self.reference.rows = [
            Row(entry.key, entry.version, buffer, entry.occupied)
            for buffer in self.reference.buffers()
            for entry in manager.entries(buffer)
        ]
        return refused


@dataclass(frozen=True)
class Mirrored(Bounded):
    def gate(self, batch_groups):
        return MirroredGate(super().gate(batch_groups).manager)


def mirrored(own):
    return {"admission": Mirrored(own.admission.bound, own.admission.surplus)}


def test_both_hold_the_same_whatever_happens():
    for seed in seeds(40, fits=lambda case: case.pipeline.admission.name == "bounded"):
        play(seed, world(seed, spec=mirrored), gives_up=True)
    assert MirroredGate.operations > expected(1_500)
