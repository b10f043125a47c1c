"""The trainer's publications and real relays at two sites: one of each site receives, whoever dies."""

import pytest

from tailrace.contracts import Publish
from tailrace.paramserver import RelayReader, relay_status
from tailrace.pipeline.roles.publishing import Publishing
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

    def publish(self, version):
        """A version, at the relays that live; returns once all of them show it."""
        living = {relay.name: relay.address for relay in self.relays if relay.alive()}
        sites = {name: "west" for name in living if name != self.relays[0].name}
        self.role.publish(Publish(version, version, living, sites), lambda: [("w", bytes([version]) * NBYTES)])
        for address in living.values():
            with RelayReader(address, token=self.token) as reader, reader.lease(version, timeout_s=30) as held:
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
    assert over.published == [1, 2, 3]


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
