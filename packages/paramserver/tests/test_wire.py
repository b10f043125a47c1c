"""What a relay makes of peers that are not what they should be."""

import dataclasses
import json
import os
import socket
import struct
import threading
import time
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.paramserver import (
    AuthenticationFailed,
    ManifestInvalid,
    ProtocolError,
    Publisher,
    RelayProcess,
    RelayReader,
    RelayTimeout,
    RelayUnreachable,
    relay_status,
)
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.manifest import Manifest, TensorSpec, checksum
from tailrace.paramserver.wire import authentication
from tailrace.paramserver.wire.authentication import connect
from tailrace.paramserver.wire.channel import format_address, parse_address

ONE = Manifest(1, 1, 64, 64, (TensorSpec("w", "uint8", (64,), 0, 64),))


GO = {"go": True, "missing": [[0, 1]], "transport": "inline", "codec": None, "base": None}


@pytest.mark.parametrize("client", ["publisher", "reader", "status"])
def test_a_wrong_token_is_refused(serve, token, weights, client):
    relay = serve()
    if client == "publisher":
        with Publisher(relay.address, token="wrong") as publisher:
            publisher.publish(0, weights(0))
            with pytest.raises(AuthenticationFailed, match="wrong token"):
                publisher.wait(0, 20)
    elif client == "reader":
        with pytest.raises(AuthenticationFailed, match="wrong token"):
            RelayReader(relay.address, token="wrong").latest()
    else:
        with pytest.raises(AuthenticationFailed, match="wrong token"):
            relay_status(relay.address, token="wrong")
    assert relay_status(relay.address, token=token).versions == ()


def message(data):
    return struct.pack("!IQ", len(data), checksum(data)) + data


def test_a_relay_without_the_token_is_refused():
    """It relays nothing: it answers the challenge with what it saw."""
    listener = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"

    def impostor():
        sock, _ = listener.accept()
        sock.sendall(message(b'{"tailrace": 3, "nonce": "0123"}'))
        answer = sock.recv(4096)
        proof = json.loads(answer[12:])["proof"]
        sock.sendall(message(json.dumps({"proof": proof, "relay": {}}).encode()))
        sock.recv(1)

    threading.Thread(target=impostor, daemon=True).start()
    with pytest.raises(AuthenticationFailed, match="did not prove"):
        connect(HOST, address, token="secret", timeout_s=10, stall_s=10)
    listener.close()


class Between:
    """Who is dialled in place of a relay, and passes all on, or the replies to somebody else. It does not hold the token.

    Args:
        target: address of the relay.
        meddle: changes the client's answer to the challenge, a JSON object.
    """

    def __init__(self, target, meddle=dict):
        self._target, self._meddle = parse_address(target), meddle
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.passed = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        near, _ = self._listener.accept()
        with near, socket.create_connection(self._target) as far:
            near.sendall(far.recv(4096))
            answer = self._meddle(json.loads(near.recv(4096)[12:]))
            far.sendall(message(json.dumps(answer).encode()))
            answer = far.recv(65536)
            if b'"relay"' in answer:
                self.passed.set()  # from now on it could say what it likes to the relay
            if answer:
                near.sendall(answer)
                near.recv(1)

    def close(self):
        self._listener.close()


def renamed(*addresses):
    return lambda answer: {**answer, "to": list(addresses)}


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
@pytest.mark.parametrize("named", ["as it is", "the relay", "none", "no list", "both"])
def test_a_proof_counts_for_the_address_that_was_dialled(serve, token, host, named):
    relay = serve(host=host)
    address = relay.address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]")
    meddle = {
        "as it is": dict,
        "the relay": renamed(address),
        "none": renamed(),
        "no list": lambda answer: {**answer, "to": address},
        "both": lambda answer: {**answer, "to": [*answer["to"], address]},
    }[named]
    between = Between(address, meddle)
    error = RelayUnreachable if named == "no list" else AuthenticationFailed
    with pytest.raises(
        error, match={"as it is": "another one passed it on", "no list": "closed"}.get(named, "wrong token")
    ):
        connect(HOST, between.address, token=token, timeout_s=10, stall_s=10)
    assert not between.passed.is_set()
    between.close()
    for way in {address, address.replace("127.0.0.1", "localhost")}:
        assert relay_status(way, token=token).versions == ()


def test_a_proxy_that_a_relay_knows_is_let_through(serve, token):
    listener = socket.create_server(("127.0.0.1", 0))  # its port is free once it is closed
    taken = f"127.0.0.1:{listener.getsockname()[1]}"
    relay = serve(known_as=["proxy.example:1", taken])
    between = Between(relay.address)
    with pytest.raises(AuthenticationFailed, match="known_as"):
        connect(HOST, between.address, token=token, timeout_s=10, stall_s=10)
    between.close()
    relay = serve(known_as=[(between := Between(relay.address)).address])
    between._target = parse_address(relay.address)
    channel, _ = connect(HOST, between.address, token=token, timeout_s=10, stall_s=10)
    assert between.passed.is_set()
    channel.close()
    for close in (listener.close, between.close):
        close()
    with pytest.raises(ProtocolError, match="expected host:port"):
        serve(known_as=["nonsense"])


@pytest.mark.parametrize("drips", ["header", "body"])
def test_a_handshake_has_one_deadline(serve, token, monkeypatch, until, drips):
    """A byte at a time: each comes well before a deadline for a single one would pass."""
    monkeypatch.setattr(authentication, "HANDSHAKE_S", 1.0)
    relay = serve(stall_s=60)
    data = message(json.dumps({"nonce": "0" * 3000, "to": [], "proof": "0"}).encode())
    with socket.create_connection(parse_address(relay.address)) as sock:
        sock.sendall(data[:20] if drips == "body" else b"")
        ended = []

        def drip():
            try:
                for at in range(20 if drips == "body" else 0, len(data)):
                    sock.sendall(data[at : at + 1])
                    time.sleep(0.1)
            except OSError:
                ended.append(at)

        dripping = threading.Thread(target=drip, daemon=True)
        dripping.start()
        until(lambda: ended, "the relay to hang up")
        dripping.join()
    assert ended[0] < len(data) - 1


def test_a_relay_that_drips_does_not_hold_who_dials_it(token):
    listener = socket.create_server(("127.0.0.1", 0))
    data = message(json.dumps({"tailrace": 3, "nonce": "0" * 3000}).encode())

    def drip():
        sock, _ = listener.accept()
        try:
            for at in range(len(data)):
                sock.sendall(data[at : at + 1])
                time.sleep(0.1)
        except OSError:
            return

    threading.Thread(target=drip, daemon=True).start()
    with pytest.raises(RelayTimeout, match="did not say in time who it is"):
        connect(HOST, f"127.0.0.1:{listener.getsockname()[1]}", token=token, timeout_s=1.0, stall_s=60)
    listener.close()


def test_who_has_proved_nothing_keeps_nobody_out(serve, token, weights):
    """More connections than a relay has room for, silent or in the middle of an answer; those that proved theirs stay."""
    relay = serve()
    with RelayReader(relay.address, token=token) as reader, ExitStack() as stack:
        assert reader.latest() is None
        for number in range(600):
            sock = stack.enter_context(socket.create_connection(parse_address(relay.address)))
            sock.sendall(b"\0" * (number % 3))
        assert len(relay._unproven) <= 64
        assert relay_status(relay.address, token=token).versions == ()
        assert reader.latest() is None
        with Publisher(relay.address, token=token) as publisher:
            publisher.publish(0, weights(0))
            publisher.wait(0, 30)
        assert reader.latest() == 0


def test_an_empty_token_is_no_token(serve):
    with pytest.raises(AuthenticationFailed, match="empty"):
        RelayReader("127.0.0.1:1", token="")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=300)
    | st.text().map(lambda text: message(json.dumps({"nonce": text, "to": [text], "proof": text}).encode()))
)
def test_noise_before_authentication_changes_nothing(noisy, noise):
    relay, token = noisy
    host, port = parse_address(relay.address)
    with socket.create_connection((host, port)) as sock:
        sock.sendall(noise)
    assert relay_status(relay.address, token=token).versions == ()


@pytest.fixture
def noisy(serve, token):
    return serve(stall_s=0.5), token


@pytest.mark.parametrize("at", [12, 30, -2])
def test_a_message_that_was_damaged_on_the_way_is_not_believed(serve, token, at, capfd):
    """In a manifest one wrong byte would rename a tensor or a version, and every checksum of the weights would match."""
    relay = serve()
    channel, _ = connect(HOST, relay.address, token=token, timeout_s=10, stall_s=10)
    damaged = bytearray(message(json.dumps({"op": "offer", "manifest": ONE.to_wire()}).encode()))
    damaged[at] ^= 1
    channel._send_all(damaged)
    with pytest.raises(RelayUnreachable):
        channel.answer(10)
    channel.close()
    assert "damaged on the way" in capfd.readouterr().err
    assert relay_status(relay.address, token=token).versions == ()


REQUESTS = [
    {"op": "no such thing"},
    {"op": ["offer"]},
    {},
    {"op": "lease", "version": "1", "wait_s": 0, "hold_s": 1},
    {"op": "lease", "version": 1, "wait_s": -1, "hold_s": 1},
    {"op": "lease", "version": 1, "wait_s": 1e300, "hold_s": 1},
    {"op": "lease", "version": 1, "wait_s": 0, "hold_s": 1, "pid": "1"},
    {"op": "set_next", "address": "nonsense"},
    {"op": "set_next", "address": 7},
]


@pytest.mark.parametrize("request_", REQUESTS, ids=str)
def test_a_request_that_is_none_is_refused_by_name(serve, token, request_):
    relay = serve()
    channel, _ = connect(HOST, relay.address, token=token, timeout_s=10, stall_s=10)
    with pytest.raises(ProtocolError, match="found"):
        channel.request(request_, 10)
    channel.close()
    assert relay_status(relay.address, token=token).versions == ()


def test_limits_hold_before_anything_is_allocated(serve, token, capfd):
    relay = serve(max_bytes=63)
    channel, _ = connect(HOST, relay.address, token=token, timeout_s=10, stall_s=10)
    with pytest.raises(ManifestInvalid, match="at most 63"):
        channel.request({"op": "offer", "manifest": ONE.to_wire()}, 10)
    assert relay._table.slots[0].block.segment is None
    channel._send_all(struct.pack("!IQ", 2**32 - 1, 0))
    with pytest.raises(RelayUnreachable):
        channel.answer(10)
    channel.close()
    assert "announced a message of 4294967295 bytes, expected at most" in capfd.readouterr().err


@pytest.mark.parametrize("header", [(1, 64), (2**32 - 1, 64), (0, 63), (0, 65), (0, 2**32 - 1)])
def test_a_chunk_of_another_manifest_is_refused(serve, token, header):
    relay = serve()
    channel, _ = connect(HOST, relay.address, token=token, timeout_s=10, stall_s=10)
    assert channel.request({"op": "offer", "manifest": ONE.to_wire()}, 10) == GO
    channel._send_all(struct.pack("!IIQIB", *header, 0, header[1], 0))
    with pytest.raises(ProtocolError, match=r"expected 0 of 64|expected one of \[0, 1\]"):
        channel.answer(10)
    channel.close()
    assert relay_status(relay.address, token=token).receiving == {}


@pytest.mark.parametrize("end", ["close", "stall"])
def test_a_publisher_that_stops_midway_leaves_nothing(serve, token, weights, until, end):
    relay = serve(stall_s=0.3)
    channel, _ = connect(HOST, relay.address, token=token, timeout_s=10, stall_s=10)
    assert channel.request({"op": "offer", "manifest": ONE.to_wire()}, 10) == GO
    channel._send_all(struct.pack("!IIQIB", 0, 64, 0, 64, 0) + os.urandom(30))
    if end == "close":
        channel.close()
    until(lambda: relay_status(relay.address, token=token).receiving == {}, "the relay to give up")
    with Publisher(relay.address, token=token) as publisher:
        publisher.publish(2, weights(2))
        publisher.wait(2, 20)
    assert relay_status(relay.address, token=token).versions == (2,)
    channel.close()


def test_a_pull_never_waits_for_a_push(serve, token, weights, check):
    """No lock between the two: a push that stands still for ever holds up no pull of a complete version."""
    relay = serve(stall_s=60)
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(0, weights(0))
        publisher.wait(0, 20)
        newest = dataclasses.replace(ONE, stamp=2**62)
        channel, _ = connect(HOST, relay.address, token=token, timeout_s=10, stall_s=10)
        assert channel.request({"op": "offer", "manifest": newest.to_wire()}, 10) == GO
        channel._send_all(struct.pack("!IIQIB", 0, 64, 0, 64, 0) + os.urandom(30))
        began = time.monotonic()
        for _ in range(20):
            with reader.lease(0, timeout_s=5) as held:
                check(held, 0)
        assert time.monotonic() - began < 10
        assert relay_status(relay.address, token=token).receiving != {}
        assert reader.latest() == 0
        channel.close()


@settings(deadline=None)
@given(st.sampled_from(["127.0.0.1", "::1", "node-7.cluster"]), st.integers(1, 65535))
def test_addresses_survive_text(host, port):
    assert parse_address(format_address(host, port)) == (host, port)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "host:0", "host:65536", "host:-1", "host:x", "host:\u0661"]
)
def test_other_text_is_no_address(text):
    with pytest.raises(ProtocolError, match="expected host:port"):
        parse_address(text)


def test_what_is_no_text_is_no_address():
    with pytest.raises(ProtocolError, match="found the address 4711, expected host:port"):
        relay_status(4711, token="t")


@pytest.mark.parametrize("port", [-5, 70000])
def test_a_port_that_there_is_not_is_told_at_once(port):
    """The relay's process raised OverflowError and stood still until `timeout_s`."""
    with pytest.raises(RelayUnreachable, match=f"port {port}: expected a port from 0 to 65535"):
        RelayProcess.start(f"port{port}", token="t", port=port)


def test_nobody_there():
    with pytest.raises(RelayUnreachable, match="is it running"):
        RelayReader("127.0.0.1:1", token="t").latest()
    with pytest.raises(RelayUnreachable):
        RelayReader("x" * 70 + ":1", token="t").latest()
