"""The slot table against its invariants, under random histories."""

import threading
import uuid

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tailrace.paramserver import SlotBusy, VersionNotYet, VersionRetired
from tailrace.paramserver.machine.host import ThisHost
from tailrace.paramserver.machine.segments import SegmentOwner
from tailrace.paramserver.manifest import Manifest, TensorSpec
from tailrace.paramserver.relays.slots import SlotState, SlotTable

NBYTES = 8


class HeldClock(ThisHost):
    """The host, with a clock that only the test moves."""

    def __init__(self, test):
        self._test = test

    def now(self):
        return self._test.now


class Slots(RuleBasedStateMachine):
    """A model beside the table: which publications were completed, in order, and what each lease must keep showing."""

    def __init__(self):
        super().__init__()
        self.owner = SegmentOwner(f"slots-{uuid.uuid4().hex}")
        self.now = 0.0
        self.table = SlotTable(self.owner, 3, HeldClock(self))
        self.stamp = 0
        self.newest = None
        self.writing = None
        self.leases = []

    def teardown(self):
        self.owner.close()

    def manifest(self, version, stamp):
        return Manifest(version, stamp, NBYTES, NBYTES, (TensorSpec("w", "uint8", (NBYTES,), 0, NBYTES),))

    @precondition(lambda self: self.writing is None)
    @rule(step=st.integers(-2, 2))
    def reserve(self, step):
        self.stamp += 1
        version = max(0, (self.newest[0] if self.newest else 0) + step)
        try:
            slot = self.table.reserve(self.manifest(version, self.stamp), timeout_s=0)
        except SlotBusy:
            empty = [s for s in self.table.slots if s.state is SlotState.EMPTY]
            for slot in empty or self.table.complete_slots()[:1]:
                assert any(not lease.dead(self.now) for lease in slot.leases.held.values())
            return
        assert not slot.leases.held
        assert slot.publication.manifest.key != self.newest
        slot.memory.view[:NBYTES] = b"\xff" * NBYTES  # half-written
        self.writing = slot

    @precondition(lambda self: self.writing is not None)
    @rule()
    def complete(self):
        slot, self.writing = self.writing, None
        manifest = slot.publication.manifest
        slot.memory.view[:NBYTES] = manifest.stamp.to_bytes(NBYTES, "big")
        self.table.arrived(slot.publication, 0, 0)
        self.table.complete(slot)
        self.newest = manifest.key

    @precondition(lambda self: self.writing is not None)
    @rule()
    def fail(self):
        slot, self.writing = self.writing, None
        self.table.interrupt(slot)

    @rule(version=st.integers(0, 12), hold_s=st.sampled_from([1.0, 5.0, 100.0]))
    def lease(self, version, hold_s):
        visible = [v for v, _ in self.table.versions()]
        try:
            slot, lease = self.table.lease(version, wait_s=0, hold_s=hold_s, holder="test", process=None)
        except (VersionRetired, VersionNotYet):
            assert version not in visible
            return
        assert slot.state is SlotState.COMPLETE
        self.leases.append((slot, lease, bytes(slot.memory.view[:NBYTES]), self.now + hold_s))

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data):
        slot, lease, _, deadline = self.leases.pop(data.draw(st.integers(0, len(self.leases) - 1)))
        kept = self.table.release(slot, lease)
        assert kept or self.now >= deadline

    @rule(seconds=st.sampled_from([0.5, 2.0, 10.0]))
    def time_passes(self, seconds):
        self.now += seconds

    @invariant()
    def a_lease_shows_one_version(self):
        for slot, lease, content, deadline in self.leases:
            if self.now < deadline or lease.id in slot.leases.held:
                assert bytes(slot.memory.view[:NBYTES]) == content

    @invariant()
    def the_newest_version_is_readable(self):
        if self.newest is not None:
            assert self.table.versions()[-1] == self.newest

    @invariant()
    def versions_grow_with_their_stamps(self):
        visible = self.table.versions()
        assert visible == sorted(visible, key=lambda key: key[1])
        assert [v for v, _ in visible] == sorted({v for v, _ in visible})


Slots.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSlots = Slots.TestCase


@pytest.mark.parametrize("count", [0, 1, 17])
def test_the_number_of_slots_is_bounded(count):
    with pytest.raises(ValueError, match="expected 2 to 16"):
        SlotTable(None, count)


class Clock:
    now = 0.0


def test_a_writer_takes_the_slot_of_a_dead_lease_and_waits_for_no_living_one(relay_name):
    """Both slots' versions were undone by a rollback; readers hold them still, one of them past its deadline."""
    owner, clock = SegmentOwner(relay_name), Clock()
    try:
        table, leased = SlotTable(owner, 3, HeldClock(clock)), []

        def published(stamp):
            spec = (TensorSpec("w", "uint8", (NBYTES,), 0, NBYTES),)
            slot = table.reserve(Manifest(0, stamp, NBYTES, NBYTES, spec), timeout_s=0)
            table.arrived(slot.publication, 0, 0)
            table.complete(slot)
            return slot

        for stamp, hold_s in ((1, 5.0), (2, 1.0)):
            leased.append(published(stamp))
            table.lease(0, wait_s=0, hold_s=hold_s, holder="test", process=None)
        published(3)
        clock.now = 1.0
        assert published(4) is leased[1]
    finally:
        owner.close()


def test_an_interrupted_version_of_a_dead_trainer_yields_in_time(relay_name):
    """Its stamp is newer, since that trainer's clock was ahead; nobody goes on with it, and the next trainer's must pass."""
    owner, clock = SegmentOwner(relay_name), Clock()
    try:
        table = SlotTable(owner, 2, HeldClock(clock))

        def manifest(version, stamp):
            return Manifest(version, stamp, 4, NBYTES, (TensorSpec("w", "uint8", (NBYTES,), 0, NBYTES),))

        for version, stamp, chunks in ((0, 1, 2), (1, 9, 1)):
            slot = table.reserve(manifest(version, stamp), 0)
            for index in range(chunks):
                table.arrived(slot.publication, index, 0)
            (table.complete if chunks == 2 else table.interrupt)(slot)
        clock.now = 9.0
        with pytest.raises(SlotBusy, match="newer and arriving"):
            table.reserve(manifest(1, 5), 0)
        clock.now = 11.0
        assert table.reserve(manifest(1, 5), 0).publication.manifest.stamp == 5
        assert table.versions() == [(0, 1)]
    finally:
        owner.close()


def test_a_version_that_is_retired_while_a_newer_one_waits_for_its_slot_stays_retired(relay_name):
    """The newer one gave up, and the retired one was served again."""
    owner = SegmentOwner(relay_name)
    table = SlotTable(owner, 2)

    def manifest(version):
        return Manifest(version, version, NBYTES, NBYTES, (TensorSpec("w", "uint8", (NBYTES,), 0, NBYTES),))

    try:
        for version in (1, 2):
            slot = table.reserve(manifest(version), timeout_s=1)
            table.arrived(slot.publication, 0, 0)
            table.complete(slot)
        table.lease(1, wait_s=0, hold_s=60, holder="a reader", process=None)
        ended = []

        def write():
            with pytest.raises(SlotBusy):
                table.reserve(manifest(3), timeout_s=1.0)
            ended.append(True)

        writer = threading.Thread(target=write)
        writer.start()
        with table.changed:
            while not any(slot.state is SlotState.RETIRING for slot in table.slots):
                assert table.changed.wait(20)
        assert table.retire(1) == [(1, 1)]
        writer.join(20)
        assert ended
        assert table.versions() == [(2, 2)]
        with pytest.raises(VersionRetired):
            table.lease(1, wait_s=0, hold_s=1, holder="another", process=None)
    finally:
        owner.close()
