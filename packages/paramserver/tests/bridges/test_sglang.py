"""The SGLang adapter against a server that implements SGLang's interface strictly; rollout's tests run it with SGLang's own."""

import gc
import hashlib
import socket
import time

import pytest

pytest.importorskip("torch")

import torch

from tailrace.paramserver import PortInUse, Publisher, RelayReader, VersionNotYet
from tailrace.paramserver.bridges.sglang import SGLangServer, SourceGroup, listen
from tailrace.paramserver.bridges.sglang import started as on_a_thread
from tailrace.paramserver.errors import (
    BridgeStateInvalid,
    EngineRefused,
    EngineTimeout,
    EngineUnreachable,
    WeightsMismatch,
)
from tailrace.paramserver.testing import SGLangStandIn

API_KEY = "key-of-the-test"


@pytest.fixture(scope="module")
def started():
    with SGLangStandIn(2, API_KEY) as server:
        yield server


@pytest.fixture
def server(started):
    started.fail()
    return started


@pytest.fixture
def place(serve, token):
    relay = serve()
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        yield publisher, reader


@pytest.fixture
def adapter(server, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    adapters = []

    def make(**options):
        adapters.append(SGLangServer(server.url, **{"api_key": API_KEY, "bucket_bytes": 1400, **options}))
        return adapters[-1]

    yield make
    server.fail()
    for one in adapters:
        one.close()


def weights_of(seed):
    generator = torch.Generator().manual_seed(seed)
    embed = torch.randn(30, 8, generator=generator)
    return {
        "model.embed_tokens.weight": embed,
        "model.norm.weight": torch.randn(8, generator=generator).bfloat16(),
        "model.big.weight": torch.randn(64, 32, generator=generator),  # larger than a bucket
        "model.turned.weight": torch.randn(8, 16, generator=generator).t(),
        "model.scale": torch.tensor(float(seed)),
        "model.nothing": torch.empty(0, 3),
        "lm_head.weight": embed,
    }


def digest(weights):
    def raw(tensor):
        return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())

    return {
        name: [str(t.dtype).removeprefix("torch."), list(t.shape), hashlib.sha256(raw(t)).hexdigest()]
        for name, t in weights.items()
        if t.numel()
    }


def check(server, weights, version):
    state = server.state()
    assert state["version"] == version
    assert state["paused"] is None
    assert state["session"] is False
    for model, largest in state["models"]:
        assert model == digest(weights)
        assert largest == 64 * 32 * 4
    return state


def test_versions_arrive_in_buckets_whole_and_named(server, adapter, place):
    publisher, reader = place
    sglang = adapter()
    for version in (3, 4):
        server.fail()
        weights = weights_of(version)
        publisher.publish(version, weights.items())
        before = server.state()["flushed"]
        assert sglang.update(reader, version, timeout_s=60) == version
        assert sglang.weight_version() == str(version)
        state = check(server, weights, str(version))
        assert state["flushed"] == before + 1
        first = ["/init_weights_update_group"] if version == 3 else []
        assert state["log"] == [
            "/server_info",
            *first,
            "/pause_generation",
            "/begin_weight_update",
            *["/update_weights_from_distributed"] * 4,
            "/end_weight_update",
            "/model_info",
            "/continue_generation",
            "/model_info",
        ]
    publisher.publish(5, weights_of(5).items())
    publisher.wait(5, 20)
    assert sglang.update(reader, timeout_s=60) == 5


def test_the_group_is_met_on_the_given_address_only(adapter, place):
    publisher, reader = place
    publisher.publish(1, weights_of(1).items())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    adapter(port=port).update(reader, 1, timeout_s=60)
    socket.create_connection(("127.0.0.1", port), 5).close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), 5)


@pytest.mark.parametrize("pause", ["abort", "in_place"])
def test_requests_under_way_can_be_treated_in_another_way(server, adapter, place, pause):
    publisher, reader = place
    publisher.publish(1, weights_of(1).items())
    before = server.state()["flushed"]
    adapter(pause=pause).update(reader, 1, timeout_s=60)
    assert check(server, weights_of(1), "1")["flushed"] == before + (pause == "abort")


def test_a_server_without_sessions_is_served_too(server, adapter, place):
    publisher, reader = place
    server.fail(__begin_weight_update={"status": 404})
    publisher.publish(1, weights_of(1).items())
    adapter().update(reader, 1, timeout_s=60)
    assert "/end_weight_update" not in check(server, weights_of(1), "1")["log"]


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ({"__server_info": {"status": 500, "message": "broken"}}, EngineRefused, "answered 500: 'broken'"),
        ({"__server_info": {"raw": "[]"}}, EngineRefused, "expected a JSON object"),
        ({"__server_info": {"raw": "nonsense"}}, EngineRefused, "answered 'nonsense'"),
        ({"__server_info": {"hang_s": 6}}, EngineTimeout, "did not answer in"),
        ({"__server_info": {"trickle_s": 6}}, EngineTimeout, "did not answer in"),
        ({"sizes": {"dp_size": 2}}, BridgeStateInvalid, "tensor parallelism only"),
        ({"sizes": {"tp_size": "2"}}, EngineRefused, "expected a positive integer"),
        (
            {"__init_weights_update_group": {"status": 400, "message": "no such backend"}},
            EngineRefused,
            "no such backend",
        ),
        ({"__pause_generation": {"status": 500}}, EngineRefused, "pause_generation answered 500"),
        (
            {"__begin_weight_update": {"status": 400}, "__end_weight_update": {"status": 400}},
            EngineRefused,
            "answered 400",
        ),
    ],
)
def test_a_server_that_fails_before_the_weights_is_unchanged_and_goes_on(server, adapter, place, plan, error, message):
    publisher, reader = place
    for version in (1, 2):
        publisher.publish(version, weights_of(version).items())
        publisher.wait(version, 20)
    sglang = adapter()
    sglang.update(reader, 1, timeout_s=60)
    other = adapter() if "__init_weights_update_group" in plan else sglang
    server.fail(**plan)
    start = time.monotonic()
    with pytest.raises(error, match=message) as found:
        other.update(reader, 2, timeout_s=2)
    assert time.monotonic() - start < 4.5
    assert "paused" not in str(found.value)
    server.fail()
    check(server, weights_of(1), "1")
    sglang.update(reader, 2, timeout_s=60)
    check(server, weights_of(2), "2")


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        (
            {"__update_weights_from_distributed": {"status": 400, "message": "no room", "after": 2}},
            EngineRefused,
            "no room",
        ),
        ({"__update_weights_from_distributed": {"status": 400, "after": 0}}, EngineRefused, "answered 400"),
        ({"__update_weights_from_distributed": {"hang_s": 6, "status": 400, "after": 1}}, EngineTimeout, " s"),
        ({"__end_weight_update": {"status": 500}}, EngineRefused, "end_weight_update answered 500"),
        ({"__model_info": {"raw": '{"weight_version": "1"}'}}, EngineRefused, "names its weights '1', expected '2'"),
    ],
)
def test_a_server_that_fails_in_the_middle_stays_paused_until_an_update_succeeds(
    server, adapter, place, plan, error, message
):
    publisher, reader = place
    for version in (1, 2):
        publisher.publish(version, weights_of(version).items())
        publisher.wait(version, 20)
    sglang = adapter()
    sglang.update(reader, 1, timeout_s=60)
    server.fail(**plan)
    start = time.monotonic()
    with pytest.raises(error, match=f"{message}.*stays paused, with parts of two versions") as found:
        sglang.update(reader, 2, timeout_s=3)
    assert time.monotonic() - start < 20
    assert server.url in str(found.value)
    server.fail()
    assert server.state()["paused"] == "retract"
    assert "/continue_generation" not in server.state()["log"]
    sglang.update(reader, 2, timeout_s=60)
    check(server, weights_of(2), "2")


@pytest.mark.deep
def test_who_frees_a_group_does_not_wait_for_a_transfer_that_was_given_up(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with SGLangStandIn() as server:  # it joins, and never receives
        listener = listen("127.0.0.1", 0)
        body = {"master_address": "127.0.0.1", "master_port": listener.getsockname()[1], "rank_offset": 1}
        body |= {"world_size": 2, "group_name": "unread", "backend": "gloo"}
        asked = on_a_thread(lambda: server.ask("/init_weights_update_group", body), "init")
        held = [SourceGroup(listener, 2, "unread", "gloo", 60)]
        assert asked.result(60)["success"]

        def leave():
            with pytest.raises(EngineUnreachable, match="gave up"):
                held[0].broadcast([torch.ones(4)], 120, lambda: True)
            held[0].close()
            held.clear()
            gc.collect()

        on_a_thread(leave, "leaving").result(30)


def test_a_wrong_key_a_wrong_body_and_a_wrong_url_are_refused(server, adapter, place):
    publisher, reader = place
    publisher.publish(1, weights_of(1).items())
    for key in ("another", None):
        with pytest.raises(EngineRefused, match=r"answered 401.*check the API key"):
            adapter(api_key=key).update(reader, 1, timeout_s=5)
    with pytest.raises(EngineRefused, match="answered 422"):
        adapter(pause="nothing").update(reader, 1, timeout_s=20)
    for url in ("127.0.0.1:30000", "ftp://127.0.0.1", "http://", "http://a?b=c"):
        with pytest.raises(BridgeStateInvalid, match="expected http"):
            SGLangServer(url)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} of 127.0.0.1 in use"):
            adapter(port=port).update(reader, 1, timeout_s=5)
    with pytest.raises(BridgeStateInvalid, match="name an address of this host"):
        adapter(host="192.0.2.1").update(reader, 1, timeout_s=5)
    with pytest.raises(BridgeStateInvalid, match="bucket_bytes"):
        SGLangServer(server.url, bucket_bytes=0)


def test_a_version_that_does_not_fit_or_is_missing_does_not_touch_the_server(server, adapter, place):
    publisher, reader = place
    weights = weights_of(1)
    publisher.publish(1, weights.items())
    shapes = {name: tuple(t.shape) for name, t in weights.items() if t.numel()}
    for expected, message in [
        ({**shapes, "model.more": (2,)}, r"'model.more': found nothing in version 1, expected \[2\]"),
        ({**shapes, "model.norm.weight": (9,)}, r"'model.norm.weight': found \[8\] in version 1, expected \[9\]"),
    ]:
        with pytest.raises(WeightsMismatch, match=message):
            adapter(check_names=expected).update(reader, 1, timeout_s=20)
    with pytest.raises(VersionNotYet, match="version 7"):
        adapter().update(reader, 7, timeout_s=0.2)
    assert server.state()["log"] == []
    adapter(check_names=shapes).update(reader, 1, timeout_s=60)
    check(server, weights, "1")


def test_a_server_that_is_down_or_dies_is_reported(place, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    publisher, reader = place
    publisher.publish(1, weights_of(1).items())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(EngineUnreachable, match="does the server run"):
        SGLangServer(url).update(reader, 1, timeout_s=5)
    server = SGLangStandIn(1, API_KEY)
    sglang = SGLangServer(server.url, api_key=API_KEY, bucket_bytes=1400)
    try:
        sglang.update(reader, 1, timeout_s=60)
        server.fail(__update_weights_from_distributed={"hang_s": 30, "status": 400, "after": 1})
        import threading

        threading.Timer(1.0, server.kill).start()
        start = time.monotonic()
        with pytest.raises((EngineUnreachable, EngineTimeout), match="stays paused"):
            sglang.update(reader, 1, timeout_s=10)
        assert time.monotonic() - start < 15
    finally:
        sglang.close()
