import threading

import pytest

from tailrace.paramserver import (
    ManifestInvalid,
    Publisher,
    PublishTimeout,
    RelayReader,
    RelayUnreachable,
    SlotBusy,
    VersionSuperseded,
)
from tailrace.paramserver.machine.host import ThisHost


def test_publish_never_waits_for_a_stuck_reader(spawn, token, weights, check, until):
    """If publish waited, this test would not get past the lease that only it can end."""
    relay, outcomes = spawn(), []
    with (
        Publisher(relay.address, token=token, on_published=lambda v, e: outcomes.append((v, e))) as publisher,
        RelayReader(relay.address, token=token) as reader,
    ):
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        with reader.lease(0):
            publisher.publish(1, weights(1))
            publisher.wait(1, 20)
            for version in range(2, 12):
                assert publisher.publish(version, weights(version)) >= 0.0
                if version == 2:
                    until(lambda: reader.versions() == [1], "version 2 to wait for the slot")
            with pytest.raises(PublishTimeout, match="2 pushing"):
                publisher.wait(11, 0.1)
            with pytest.raises(VersionSuperseded, match="version 5 was superseded by version 6"):
                publisher.wait(5, 20)
        publisher.wait(11, 20)
        assert publisher.superseded == list(range(3, 11))
        with reader.lease(11) as newest:
            check(newest, 11)
        until(lambda: len(outcomes) == 12, "all callbacks")
    assert sorted(version for version, _ in outcomes) == list(range(12))
    assert {version for version, error in outcomes if error is None} == {0, 1, 2, 11}
    assert all(isinstance(error, VersionSuperseded) for version, error in outcomes if error is not None)


def test_weights_are_a_mapping_or_pairs(serve, token, weights, check):
    relay = serve()
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        forms = [dict(weights(0)), dict(weights(1)).items(), [*weights(2)], (list(pair) for pair in weights(3))]
        for version, form in enumerate(forms):
            publisher.publish(version, form)
            publisher.wait(version, 20)
            with reader.lease(version) as found:
                check(found, version)
        (name, value), *_ = weights(4)
        for neither in (dict(weights(4)).keys(), ["ab"], [(name,)], [(1, value)], [(name, value, 1)], "ab", None, 3):
            with pytest.raises(ManifestInvalid, match="expected pairs of a name and a tensor, or a mapping"):
                publisher.publish(4, neither)
        publisher.publish(4, {"ab": value})  # a name of two letters
        publisher.wait(4, 20)
        with reader.lease(4) as found:
            assert [*found] == ["ab"]


def test_a_slot_that_stays_leased_is_reported(serve, token, weights):
    relay = serve(slot_timeout_s=0.5)
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        publisher.publish(1, weights(1))
        publisher.wait(1, 20)
        with reader.lease(0):
            publisher.publish(2, weights(2))
            with pytest.raises(SlotBusy, match="leased by pid"):
                publisher.wait(2, 20)
            assert reader.versions() == [0, 1]  # nothing was lost over it
        publisher.retarget(relay.address)
        publisher.wait(2, 20)


def test_more_slots_serve_more_versions(serve, token, weights):
    relay = serve(slots=4)
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        for version in range(6):
            publisher.publish(version, weights(version))
            publisher.wait(version, 20)
        assert reader.versions() == [2, 3, 4, 5]


def test_the_trainer_may_change_its_weights_after_publish(serve, token):
    torch = pytest.importorskip("torch")
    relay, value = serve(), torch.zeros(100_000)
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        for version in range(4):
            publisher.publish(version, [("w", value)])
            value += 1
            publisher.wait(version, 20)
            with reader.lease(version) as weights:
                assert torch.equal(weights["w"], torch.full((100_000,), float(version)))


def test_no_relay_no_stall(token, weights):
    with Publisher("127.0.0.1:1", token=token) as publisher:
        publisher.publish(0, weights(0))
        with pytest.raises(RelayUnreachable):
            publisher.wait(0, 20)


def test_before_there_is_a_relay(serve, token, weights, check, until):
    outcomes = []
    with Publisher(None, token=token, on_published=lambda v, e: outcomes.append((v, e))) as publisher:
        for version in range(3):
            publisher.prepare(10**6)
            assert publisher.publish(version, weights(version)) < 1.0
        assert publisher.address == ""
        with pytest.raises(RelayUnreachable, match="knows no master"):
            publisher.retire(1)
        with pytest.raises(PublishTimeout, match="2 waiting"):
            publisher.wait(2, 0.1)
        relay = serve()
        publisher.retarget(relay.address)
        publisher.wait(2, 20)
        with RelayReader(relay.address, token=token) as reader, reader.lease(2) as held:
            assert reader.versions() == [2]
            check(held, 2)
        until(lambda: len(outcomes) == 3, "all callbacks")
    assert [type(error) for _, error in outcomes] == [VersionSuperseded, VersionSuperseded, type(None)]
    Publisher(None, token=token).close()


def test_retarget_in_the_middle_of_a_push(spawn, serve, token, weights, check, until):
    stuck, fresh = spawn(), serve()
    with (
        Publisher(stuck.address, token=token) as publisher,
        RelayReader(stuck.address, token=token) as reader,
        RelayReader(fresh.address, token=token) as fresh_reader,
    ):
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        publisher.publish(1, weights(1))
        publisher.wait(1, 20)
        with reader.lease(0):
            publisher.publish(2, weights(2))
            until(lambda: reader.versions() == [1], "version 2 to wait for the slot")
            publisher.retarget(fresh.address)
            publisher.wait(2, 20)
            with fresh_reader.lease(2) as held:
                check(held, 2)


def test_a_callback_that_raises_does_not_end_publishing(serve, token, weights, caplog):
    relay, called = serve(), threading.Event()

    def broken(version, error):
        called.set()
        raise ZeroDivisionError("in the callback")

    with Publisher(relay.address, token=token, on_published=broken) as publisher:
        for version in (0, 1):
            publisher.publish(version, weights(version))
            publisher.wait(version, 20)
    assert called.is_set()
    assert "on_published raised for version 0" in caplog.text


def test_a_callback_may_close_the_publisher(serve, token, weights, until, caplog):
    relay, told = serve(), []

    def close(version, error):
        publisher.close()
        told.append((version, error))

    publisher = Publisher(relay.address, token=token, on_published=close)
    publisher.publish(0, weights(0))
    until(lambda: told, "the end of the callback")
    assert told == [(0, None)]
    assert not caplog.text
    assert all(staged.memory.fd < 0 for staged in publisher._staged)


def test_waiting_for_a_number_that_is_published_twice_is_for_the_later_one(serve, token, weights, check, until):
    told = []
    with Publisher(None, token=token, on_published=lambda v, e: told.append((v, type(e)))) as publisher:
        publisher.publish(1, weights(1))
        publisher.publish(1, weights(11))
        with pytest.raises(PublishTimeout, match="1 waiting"):
            publisher.wait(1, 0.1)
        relay = serve()
        publisher.retarget(relay.address)
        publisher.wait(1, 20)
        with RelayReader(relay.address, token=token) as reader:
            publisher.publish(2, weights(2))
            publisher.wait(2, 20)
            with reader.lease(1):
                publisher.publish(3, weights(3))
                until(lambda: reader.versions() == [2], "version 3 to wait for the slot")
                publisher.publish(3, weights(33))
            publisher.wait(3, 20)
            with reader.lease(3) as held:
                assert bytes(held.raw()["layer.0.weight"].data)[:1] == bytes([33])
        until(lambda: len(told) == 5, "all callbacks")
    assert told == [(1, VersionSuperseded), *((version, type(None)) for version in (1, 2, 3, 3))]


def test_a_closed_publisher_refuses(serve, token, weights):
    relay = serve()
    publisher = Publisher(relay.address, token=token)
    publisher.publish(0, weights(0))
    publisher.close()  # what was staged still arrives
    with RelayReader(relay.address, token=token) as reader:
        assert reader.latest() == 0
    with pytest.raises(RelayUnreachable, match="closed"):
        publisher.publish(1, weights(1))


class Clock(ThisHost):
    """The host, with a clock that can be set back."""

    set_back_s = 0

    def time_ns(self):
        return super().time_ns() - self.set_back_s * 10**9


@pytest.mark.parametrize("buffers", [1, 2])
def test_a_clock_that_is_set_back_does_not_reorder_versions(serve, token, weights, buffers):
    """With one buffer, the stamp of the version before was forgotten with it, and relays refused all later ones."""
    host = Clock()
    relay = serve()
    with Publisher(relay.address, token=token, buffers=buffers, machine=host) as publisher:
        for version in range(4):
            publisher.publish(version, weights(version))
            publisher.wait(version, 20)
            host.set_back_s += 3600
