"""The trainer's publications and real relays at two sites: one of each site receives, whoever dies."""

import os
import signal

import pytest

from tailrace.contracts import Publish
from tailrace.paramserver import PublishTimeout, RelayGroup, RelayReader, RelayUnreachable, relay_status
from tailrace.pipeline.roles.publishing import Publishing, SiteArrivals
from tailrace.pipeline.roles.transfer import WeightTransfer

NBYTES = 100_000


class Sites:
    """A publication over relays of which all but the first are at another site."""

    def __init__(self, token, spawn, until, count):
        self.token, self.until = token, until
        self.relays = [spawn() for _ in range(count)]
        self.published, self.broken = [], []
        self.role = Publishing(
            token=token,
            transfer=WeightTransfer(codec="none"),
            published=lambda version, seq: self.published.append(version),
            broke=self.broken.append,
        )

    def offer(self, version):
        living = {relay.name: relay.address for relay in self.relays if relay.alive()}
        sites = {name: "west" for name in living if name != self.relays[0].name}
        self.role.publish(Publish(version, version, living, sites), lambda: [("w", bytes([version]) * NBYTES)])

    def publish(self, version):
        """A version, at the relays that live; returns once all of them show it."""
        self.offer(version)
        for relay in self.relays:
            if relay.alive():
                with (
                    RelayReader(relay.address, token=self.token) as reader,
                    reader.lease(version, timeout_s=30) as held,
                ):
                    assert bytes(held.raw()["w"].data) == bytes([version]) * NBYTES
        assert self.broken == []

    def status(self, index):
        return relay_status(self.relays[index].address, token=self.token)

    def sent(self, index=0):
        return self.status(index).transfers["bytes_sent"]

    def chain(self):
        """The relays that a version passes beyond the link, from the one that receives it."""
        index = {relay.address: place for place, relay in enumerate(self.relays)}
        found, hops = [], list(self.status(0).hops)
        while hops:
            assert len(hops) == 1, "more than one relay receives over the link"
            found.append(index[hops[0]])
            hops = list(self.status(found[-1]).hops)
        return found


@pytest.fixture
def sites(token, spawn, until):
    made = []

    def make(count):
        made.append(Sites(token, spawn, until, count))
        return made[-1]

    yield make
    for one in made:
        one.role.close()


@pytest.mark.parametrize("beyond", [1, 2, 4])
def test_one_relay_receives_for_all_of_its_site(sites, beyond):
    over = sites(1 + beyond)
    over.publish(1)
    before = over.sent()
    for version in (2, 3):
        over.publish(version)
    assert over.sent() - before == 2 * NBYTES  # however many replicas stand beyond the link
    assert sorted(over.chain()) == list(range(1, 1 + beyond))
    over.until(lambda: over.published == [1, 2, 3], "the controller to hear of all versions")


def test_another_of_the_site_receives_once_the_receiver_is_dead(sites):
    over = sites(4)
    over.publish(1)
    receiver, *others = over.chain()
    over.relays[receiver].kill()
    over.publish(2)
    over.until(lambda: sorted(over.chain()) == sorted(others), "the rest of the site to form a chain")
    before = over.sent()
    over.publish(3)
    assert over.sent() - before == NBYTES


def test_a_version_may_be_pulled_once_every_site_that_lives_has_it(sites, caplog):
    over = sites(2)
    over.publish(1)
    over.until(lambda: over.published == [1], "the controller to hear of version 1")
    os.kill(over.relays[1].pid, signal.SIGSTOP)  # as behind a cut link
    over.offer(2)
    over.until(lambda: over.status(0).versions[-1] == 2, "version 2 at the trainer's site")
    assert over.published == [1]
    over.until(lambda: over.published == [1, 2], "the site to count as dead")
    os.kill(over.relays[1].pid, signal.SIGCONT)
    over.until(lambda: over.status(1).versions[-1] == 2, "the site to catch up")
    caplog.clear()
    for version in (3, 4):
        over.offer(version)
        over.until(lambda v=version: v in over.published, f"version {version} at every site that lives")
        assert over.status(1).versions[-1] == version or "is out of the group" in caplog.text, "a living site lacks it"
    assert over.published == [1, 2, 3, 4]


def test_a_site_is_not_waited_for_without_end(token, spawn, until):
    relays, told = {"home": spawn(), "far": spawn()}, []
    addresses = {name: relay.address for name, relay in relays.items()}
    with RelayGroup(addresses, token=token, sites={"far": "west"}) as group:
        arrivals = SiteArrivals(group, told.append, patience_s=0.05)
        for version in (3, 4):  # of which no relay will ever have one
            arrivals.expect(version)
        until(lambda: told == [3, 4], "the end of both waits")
        with pytest.raises(PublishTimeout, match=r"version 4 did not reach the sites the trainer's, west in 0.01 s"):
            group.wait_sites(4, 0.01)
    arrivals.close(5.0)
    with pytest.raises(RelayUnreachable, match="closed"):
        group.wait_sites(4, 5.0)
