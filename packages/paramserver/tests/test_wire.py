"""What a relay makes of peers that are not what they should be."""

import dataclasses
import json
import os
import socket
import struct
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.paramserver import (
    AuthenticationFailed,
    ManifestInvalid,
    ProtocolError,
    Publisher,
    RelayReader,
    RelayUnreachable,
    relay_status,
)
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.manifest import Manifest, TensorSpec, checksum
from tailrace.paramserver.wire.address import format_address, parse_address
from tailrace.paramserver.wire.authentication import connect

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

    import threading

    def impostor():
        sock, _ = listener.accept()
        sock.sendall(message(b'{"tailrace": 2, "nonce": "0123"}'))
        answer = sock.recv(4096)
        proof = json.loads(answer[12:])["proof"]
        sock.sendall(message(json.dumps({"proof": proof, "relay": {}}).encode()))
        sock.recv(1)

    threading.Thread(target=impostor, daemon=True).start()
    with pytest.raises(AuthenticationFailed, match="did not prove"):
        connect(HOST, address, token="secret", timeout_s=10, stall_s=10)
    listener.close()


def test_an_empty_token_is_no_token(serve):
    with pytest.raises(AuthenticationFailed, match="empty"):
        RelayReader("127.0.0.1:1", token="")


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=300) | st.text().map(lambda text: message(json.dumps({"nonce": text, "proof": text}).encode()))
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


def test_nobody_there():
    with pytest.raises(RelayUnreachable, match="is it running"):
        RelayReader("127.0.0.1:1", token="t").latest()
    with pytest.raises(RelayUnreachable):
        RelayReader("x" * 70 + ":1", token="t").latest()
