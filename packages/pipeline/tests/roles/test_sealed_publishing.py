"""The trainer role with a fence and real relays, really killed: what is sealed is not seen, and a reveal waits for nothing."""

import itertools

import pytest

from tailrace.contracts import Checkpoint, Durable, Publish, Published, Reveal, Step, Stepped
from tailrace.paramserver import Publisher, PublishTimeout, RelayReader, VersionSuperseded, relay_status
from tailrace.trainer import checkpoint
from tailrace.trainer.checkpoint_files import complete


class Fenced:
    """A trainer that steps, publishes sealed and saves, as a controller with a fence would tell it."""

    def __init__(self, role, data, token, until):
        self.role, self.data, self.token, self.until = role, data, token, until
        self.events, self.numbers, self.version = [], itertools.count(1), 0
        role.ready(None)

    def publish(self, relays, version=0, *, sealed=True):
        seq = next(self.numbers)
        addresses = {relay.name: relay.address for relay in relays}
        self.role.submit([Publish(seq, version, addresses, sealed=sealed)])
        return seq

    def step(self, relays):
        self.version += 1
        self.role.submit([Step(next(self.numbers), self.version, (self.data.batch(self.version),))])
        seq = self.publish(relays, self.version)
        self.role.submit([Checkpoint(next(self.numbers), self.version)])
        return seq

    def reveal(self, version):
        """Once its checkpoint is durable, and not before."""
        self.until(lambda: version in self.heard(Durable), "the checkpoint")
        self.role.submit([Reveal(next(self.numbers), version)])

    def hear(self, event):
        def heard():
            self.events += self.role.events(0.02)
            return event in self.events

        self.until(heard, f"{event}")

    def heard(self, kind):
        self.events += self.role.events(0.02)
        return [event.version for event in self.events if isinstance(event, kind)]

    def sealed(self, relay):
        return list(relay_status(relay.address, token=self.token).sealed)

    def seen(self, relay):
        with RelayReader(relay.address, token=self.token) as reader:
            return reader.versions()


@pytest.fixture
def run(make_trainer, data, token, until):
    return Fenced(make_trainer(), data, token, until)


def test_it_is_on_every_relay_before_it_is_revealed_and_seen_on_none(run, spawn, until):
    relays = [spawn(), spawn()]
    run.hear(Published(0, answers=run.publish(relays, sealed=False)))
    seq = run.step(relays)
    for relay in relays:
        until(lambda relay=relay: run.sealed(relay) == [1], "the sealed version")
        assert run.seen(relay) == [0]
    assert run.heard(Published) == [0]
    run.reveal(1)
    run.hear(Published(1, answers=seq))
    for relay in relays:
        until(lambda relay=relay: run.seen(relay) == [0, 1], "the version to be seen")


def test_a_reveal_overtakes_versions_for_which_relays_have_no_room(run, spawn, until, monkeypatch):
    """Checkpoints are slow, so only a reveal makes room, and one without room may give way to the next."""
    gates = dict.fromkeys(range(1, 5), False)

    def slow(partial, directory, manifest, written):
        until(lambda: gates[manifest["version"]], "the gate")
        complete(partial, directory, manifest, written)

    monkeypatch.setattr(checkpoint, "complete", slow)
    relay = spawn()

    def is_out(version):
        try:
            run.role._publishing._rank._publisher.wait(version, 0.0)
        except VersionSuperseded:
            return True
        except PublishTimeout:
            pass
        return version in run.heard(Published)

    run.publish([relay], sealed=False)
    seqs = {}
    for _ in range(4):
        seqs[run.version] = run.step([relay])
    until(lambda: run.sealed(relay) == [1], "the sealed version")
    for version in (1, 2, 3, 4):
        gates[version] = True
        assert run.heard(Published)[-1] < version
        run.reveal(version)
        until(lambda version=version: is_out(version), "the version to be out, or a newer one in its place")
    until(lambda: 4 in run.heard(Published), "the last version to be out")
    assert run.heard(Published)[-1] == 4
    assert run.heard(Stepped) == [1, 2, 3, 4]
    assert run.seen(relay)[-1] == 4


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_master_that_is_killed_around_the_reveal_costs_no_version(run, spawn, until, when):
    relays = [spawn(), spawn()]
    run.publish(relays, sealed=False)
    run.step(relays)
    for relay in relays:
        until(lambda relay=relay: run.sealed(relay) == [1], "the sealed version")
    master, other = sorted(relays, key=lambda r: r.address != run.role._publishing._group.master)
    if when == "before":
        master.kill()
    run.reveal(1)
    if when == "after":
        master.kill()
    until(lambda: 1 in run.heard(Published), "the version to be out")
    until(lambda: run.seen(other)[-1:] == [1], "the version to be seen on the other relay")
    seq = run.step([other])
    run.reveal(2)
    run.hear(Published(2, answers=seq))


def test_a_relay_that_comes_up_before_gets_it_sealed_and_one_after_gets_it_open(run, spawn, until):
    first = spawn()
    run.publish([first], sealed=False)
    run.step([first])
    until(lambda: run.sealed(first) == [1], "the sealed version")
    second = spawn()
    run.publish([first, second], 1)
    until(lambda: run.sealed(second) == [1], "the sealed version")
    run.reveal(1)
    until(lambda: 1 in run.heard(Published), "the version to be out")
    third = spawn()
    run.hear(Published(1, answers=run.publish([first, second, third], 1, sealed=False)))
    for relay in (second, third):
        until(lambda relay=relay: run.seen(relay)[-1:] == [1], "the version to be seen")


def test_what_a_dead_trainer_left_sealed_goes_with_what_its_successor_publishes(
    run, make_trainer, data, spawn, token, until
):
    """It died in the middle of a push, or before its checkpoint was durable. The number is not used again."""
    relay = spawn()
    run.publish([relay], sealed=False)
    until(lambda: run.seen(relay) == [0], "the first version")
    with Publisher(relay.address, token=token) as dead:
        dead.publish(1, [("w", memoryview(bytes(64)))], sealed=True)
        until(lambda: run.sealed(relay) == [1], "the sealed version")
    run.role.close()
    after = Fenced(make_trainer(), data, token, until)
    after.version = 1
    seq = after.step([relay])
    after.reveal(2)
    after.hear(Published(2, answers=seq))
    assert run.sealed(relay) == []
    assert after.seen(relay)[-1] == 2
    assert 1 not in after.seen(relay)
