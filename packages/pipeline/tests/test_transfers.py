"""A run on every transport and with every codec: replicas hold the very weights that their versions' checkpoints hold."""

import pytest

from tailrace.contracts import Down, Pull, Pulled, PullFailed, Restart, Up
from tailrace.controller.controller import Controller
from tailrace.controller.spec import RolloutPool
from tailrace.faulttol import parse_fault
from tailrace.paramserver import ParamServerError, relay_status
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.pipeline.run.build import check
from tailrace.pipeline.run.eventlog import EventLog, read_log
from tailrace.pipeline.run.figures.replicas import ReplicaFigures
from tailrace.pipeline.testing.small_run import (
    LOG,
    check_run,
    commands_of,
    events_of,
    make_deployment,
    make_files,
    make_spec,
    policy,
)
from tailrace.runtime.executor.deployment import RELAY
from tailrace.runtime.executor.executor import Executor
from tailrace.runtime.hosts.local import LocalHost

pytest.importorskip("torch", reason="a real trainer trains a real model")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture
def transfers(tmp_path, model):
    """Runs with two relays in a chain; what the relays counted."""

    def run(transfer):
        try:
            transfer.check()
        except ParamServerError as error:
            pytest.skip(str(error))
        controller = Controller(make_spec(steps=2), relays=2)
        # A small step leaves half of every float32 as it was.
        deployment = make_deployment(tmp_path, model, transfer=transfer, lr=1e-6)
        executor = Executor(LocalHost(), deployment)
        try:
            with EventLog(tmp_path / LOG) as log:
                executor.run(controller, log)
            check_run(controller, executor, tmp_path)
            relays = [running.address for (role, _), running in executor.members.items() if role == RELAY]
            assert any(relays)  # a run of two steps may be over before the second one is up
            return [relay_status(address, token=deployment.token).transfers for address in relays if address]
        finally:
            executor.close()

    return run


@pytest.mark.parametrize(
    "transport", ["tcp", *(pytest.param(each, marks=pytest.mark.deep) for each in ("shm", "ucx", "nixl"))]
)
def test_a_run_uses_the_transport_that_it_is_told(transfers, transport):
    for counts in transfers(WeightTransfer(transport)):
        assert counts["bytes_received"] > 0
        assert counts["fallbacks"] == 0
        if transport != "shm":  # which is not worth it for so few bytes
            assert counts["payload_received"] == counts["payload_sent"] == 0
            assert counts["bytes_sent"] > 0  # replicas read so, too


@pytest.mark.parametrize(
    "codec", ["delta", "fp8", *(pytest.param(each, marks=pytest.mark.deep) for each in ("none", "bf16"))]
)
@pytest.mark.cases(2)
def test_a_run_uses_the_codec_that_it_is_told(transfers, model, codec):
    for counts in transfers(WeightTransfer(codec=codec)):
        if codec == "delta":
            assert 0 < counts["payload_received"] < counts["bytes_received"]
        elif codec == "none":
            assert counts["payload_received"] == counts["bytes_received"]
        else:  # three versions of few bytes more than their matrices have
            share = counts["bytes_received"] / (3 * sum(file.stat().st_size for file in model.glob("*.safetensors")))
            assert share < {"bf16": 0.6, "fp8": 0.5}[codec]


def test_a_run_over_two_sites_sends_each_version_across_once(tmp_path, model):
    pools = (RolloutPool("near", 1, replica_batch=4), RolloutPool("far", 2, "west", replica_batch=2))
    provisioning = policy("provisioning", "static", count=3)
    spec = make_spec(steps=3, pools=pools, relay_sites=("", "west", "west"), provisioning=provisioning)
    controller = Controller(spec, relays=3)
    deployment = make_deployment(tmp_path, model, transfer=WeightTransfer(codec="none"))
    executor = Executor(LocalHost(), deployment)
    try:
        with EventLog(tmp_path / LOG) as log:
            executor.run(controller, log)
        check_run(controller, executor, tmp_path)
        addresses = {id_: running.address for (role, id_), running in executor.members.items() if role == RELAY}
        counts = [relay_status(addresses[str(index)], token=deployment.token).transfers for index in range(3)]
    finally:
        executor.close()
    assert counts[0]["bytes_sent"] == counts[1]["bytes_received"] == counts[2]["bytes_received"] > 0
    near = {pull.replica: pull.sources for pull in commands_of(tmp_path, Pull) if pull.sources}
    assert near["r0"] == (addresses["0"],)
    assert {source for name in ("r1", "r2") for source in near[name]} == {addresses["1"], addresses["2"]}


def test_replicas_pull_from_each_other_and_a_restarted_one_too(tmp_path, model):
    spec = make_spec(
        steps=40,  # a member that restarts is back long before the last one
        peers=True,
        provisioning=policy("provisioning", "static", count=3),
        sync=policy("sync", "barrier"),
        relocation=policy("relocation", "none"),
    )
    controller = Controller(spec)
    deployment = make_deployment(tmp_path, model, peers=True)
    executor = Executor(LocalHost(), deployment)
    try:
        with EventLog(tmp_path / LOG) as log:
            executor.run(controller, log, faults=[parse_fault("replica:r1@step1"), parse_fault("relay:0@step3")])
        check_run(controller, executor, tmp_path)
    finally:
        executor.close()
    offers = {up.address: up.id for up in events_of(tmp_path, Up) if up.role == "replica"}
    assert len(offers) == 4  # the restarted one has another address
    assert any(restart.id == "r1" for restart in commands_of(tmp_path, Restart))
    busy: dict[str, str] = {}  # who pulls from whom
    whom: dict[str, set[str]] = {}
    figures = ReplicaFigures()
    for instant in read_log(tmp_path / LOG):
        figures.observe(instant.now, instant.events, instant.commands)
        for event in instant.events:
            if isinstance(event, Pulled):
                busy.pop(event.replica)
                whom.setdefault(event.replica, set()).add(event.source)
                assert offers.get(event.source) != event.replica  # nobody pulls from itself
                assert event.compared == 1.0
            elif isinstance(event, PullFailed):
                busy.pop(event.replica)
            elif isinstance(event, Down) and event.role == "replica":
                busy.pop(event.id, None)
                whom.pop(event.id, None)
        for pull in instant.commands:
            if isinstance(pull, Pull):
                assert pull.sources[0] not in busy.values(), "a source serves two"
                busy[pull.replica] = pull.sources[0]
    assert whom["r1"] & offers.keys()  # since its restart
    assert figures.plain()["pulled_from_replicas"] == sum(
        pulled.source in offers for pulled in events_of(tmp_path, Pulled)
    )
    assert figures.plain()["pulled_from_replicas"] >= 2


@pytest.mark.parametrize(
    ("relay", "says"),
    [
        ({"transport": "pigeon"}, "expected one of nixl, shm, tcp, ucx, or inline"),
        ({"transport": "tcp", "codec": "delta"}, "found codec 'delta' with transport 'tcp', expected transport 'shm'"),
    ],
)
def test_what_cannot_be_used_is_said_before_the_start(relay, says):
    with pytest.raises(ConfigError, match=says) as error:
        check(validate([("my.toml", {"task": {"name": "long-chain-sum"}, "relay": relay})]))
    assert "\n" not in str(error.value)


def test_a_transport_that_is_not_installed_is_said_before_the_start(monkeypatch):
    monkeypatch.setattr("tailrace.paramserver.transport.ucx.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"'relay.transport'.*ucxx is not installed; pip install"):
        check(validate([("my.toml", {"relay": {"transport": "ucx"}})]))
