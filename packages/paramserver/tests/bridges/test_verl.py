"""The checkpoint engine for verl: what it does, its signatures as in the release, and verl's own manager with it."""

import asyncio
import inspect
import json
import os
import subprocess
import uuid
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from tailrace.paramserver import LeaseExpired, VersionNotYet
from tailrace.paramserver.bridges.verl_engine import RelayCheckpointEngine
from tailrace.paramserver.errors import BridgeStateInvalid

#: Parameters of `verl.checkpoint_engine.base.CheckpointEngine` (and of `CheckpointEngineWithCache.get_weights`) in the
#: wheel of this release, which a test in an environment of its own compares.
RELEASE = "0.9.1"
SIGNATURES = {
    "prepare": "(self)",
    "build_topology": "(actor_wg_world_size, rollout_world_size, metadata)",
    "init_process_group": "(self, **kwargs)",
    "finalize": "(self)",
    "send_weights": "(self, weights, global_steps=None)",
    "receive_weights": "(self, global_steps=None)",
    "get_weights": "(self)",
}
#: How verl 0.9.1 constructs an engine: on an actor, and on a rollout worker.
CONSTRUCTIONS = [
    {"is_master": True, "bucket_size": 2 << 30},
    {"is_master": False, "bucket_size": 1},
    {"bucket_size": 1},
]


def signature(function):
    found = inspect.signature(function)
    return str(
        found.replace(
            parameters=[p.replace(annotation=p.empty) for p in found.parameters.values()],
            return_annotation=found.empty,
        )
    )


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_method_has_the_signature_of_the_release(name):
    ours = getattr(RelayCheckpointEngine, name)
    if name == "init_process_group":  # the release passes what `build_topology` returned, by name
        actor, rollout = RelayCheckpointEngine.build_topology(1, 1, [metadata("a", master=True), metadata("b")])
        for arguments in (actor, rollout):
            inspect.signature(ours).bind(None, **{key: values[0] for key, values in arguments.items()})
    else:
        assert signature(ours) == SIGNATURES[name]
    assert inspect.iscoroutinefunction(RelayCheckpointEngine.send_weights)
    assert inspect.isasyncgenfunction(RelayCheckpointEngine.receive_weights)
    assert inspect.isasyncgenfunction(RelayCheckpointEngine.get_weights)
    assert isinstance(inspect.getattr_static(RelayCheckpointEngine, "build_topology"), classmethod)
    assert RelayCheckpointEngine.wire_format == "named_tensors"


def test_it_is_constructed_as_the_release_does(token, monkeypatch):
    monkeypatch.setenv("TAILRACE_RELAY_TOKEN", token)
    for arguments in CONSTRUCTIONS:
        RelayCheckpointEngine(**arguments).close()
    monkeypatch.delenv("TAILRACE_RELAY_TOKEN")
    with pytest.raises(BridgeStateInvalid, match="TAILRACE_RELAY_TOKEN"):
        RelayCheckpointEngine(bucket_size=1)


def metadata(host, address="", *, master=False, next_=0):
    return {
        "host": host,
        "address": address or f"{host}:1" if address is not None else None,
        "master": master,
        "next": next_,
    }


def test_the_topology_is_a_chain_of_hosts_and_every_worker_has_its_hosts_relay():
    workers = [
        metadata("a", master=True, next_=7),
        metadata("b", None),
        metadata("c", None),
        metadata("c"),
        metadata("c", None),
        metadata("a", None),
        metadata("d"),
    ]
    actor, rollout = RelayCheckpointEngine.build_topology(2, 5, workers)
    chain = ["a:1", "c:1", "d:1"]
    assert actor == {"address": ["a:1", None], "chain": [chain, None], "sends": [True] * 2, "version": [7] * 2}
    assert rollout == {
        "address": ["c:1", "c:1", "c:1", "a:1", "d:1"],
        "chain": [chain] * 5,
        "sends": [False] * 5,
        "version": [7] * 5,
    }


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ([metadata("a"), metadata("b")], "found 0 masters"),
        ([metadata("a", master=True), metadata("b", None)], "no relay on the host b"),
        ([metadata("a", None, master=True), metadata("b")], "no relay on the host a"),
        ([metadata("a", master=True)], "found metadata of 1 workers, expected 1 actors and 1 rollout"),
    ],
)
def test_a_topology_that_cannot_work_is_refused(workers, message):
    with pytest.raises(BridgeStateInvalid, match=message):
        RelayCheckpointEngine.build_topology(1, 1, workers)


class Fleet:
    """Two actors and three rollout workers on three "hosts" of this machine, driven as verl's manager drives them."""

    def __init__(self, cls, token, **options):
        name = f"verl-test-{os.getpid()}-{uuid.uuid4().hex[:8]}"

        def engine(host, **role):
            return cls(bucket_size=1 << 20, token=token, name=name, host=host, **role, **options)

        self.cls = cls
        self.actors = [engine("127.0.0.1", is_master=True), engine("127.0.0.4", is_master=False)]
        self.workers = [engine("127.0.0.2"), engine("127.0.0.2"), engine("127.0.0.3")]

    def build(self):
        everyone = [*self.actors, *self.workers]
        arguments = self.cls.build_topology(len(self.actors), len(self.workers), [e.prepare() for e in everyone])
        for engines, kwargs in zip((self.actors, self.workers), arguments, strict=True):
            for index, engine in enumerate(engines):
                engine.init_process_group(**{key: values[index] for key, values in kwargs.items()})

    async def update(self, weights, global_steps=None):
        """One update; what each rollout worker received, copied while it was valid, and the actors' results."""

        async def receive(engine):
            return [(n, t) async for n, t in engine.receive_weights(global_steps=global_steps)]

        results = await asyncio.gather(
            *(actor.send_weights(weights(), global_steps=global_steps) for actor in self.actors),
            *(receive(worker) for worker in self.workers),
        )
        sent, received = results[: len(self.actors)], results[len(self.actors) :]
        received = [{name: tensor.clone() for name, tensor in pairs} for pairs in received]
        for engine in [*self.actors, *self.workers]:
            engine.finalize()
        return sent, received

    def close(self):
        for engine in [*self.actors, *self.workers]:
            engine.close()


@pytest.fixture
def fleet(token):
    fleets = []

    def start(cls=RelayCheckpointEngine, **options):
        fleets.append(Fleet(cls, token, timeout_s=20, **options))
        return fleets[-1]

    yield start
    for one in fleets:
        one.close()


def weights_of(seed):
    generator = torch.Generator().manual_seed(seed)
    embed = torch.randn(50, 8, generator=generator)
    turned = torch.randn(6, 4, generator=generator).t()
    named = [("embed", embed), ("turned", turned), ("ids", torch.arange(5) + seed), ("head", embed)]
    return lambda: iter(named)


def check(received, expected):
    expected = dict(expected)
    for tensors in received:
        assert tensors.keys() == expected.keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, expected[name]), name


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param((None, None, None), marks=pytest.mark.deep),
        (0, 0, 1),
        pytest.param((1, 5, 5), marks=pytest.mark.deep),
    ],
)
def test_every_worker_receives_every_update(fleet, steps):
    hosts = fleet()
    for seed, step in enumerate(steps):
        hosts.build()
        weights = weights_of(seed)
        sent, received = asyncio.run(hosts.update(weights, step))
        check(received, weights())  # also if a step comes twice: never an older update of the same number
        assert sent[0]["tailrace/stall_s"] > 0
        assert sent[1] == {}
        if step is not None:
            assert sent[0]["tailrace/version"] >= step
    assert sum(engine._relay is not None for engine in [*hosts.actors, *hosts.workers]) == 3
    assert hosts.actors[1]._relay is None


def test_weights_may_be_cast_and_come_from_an_asynchronous_generator(fleet):
    hosts = fleet(rollout_dtype="bfloat16")
    hosts.build()
    weights = weights_of(3)

    async def arriving():
        for item in weights():
            await asyncio.sleep(0)
            yield item

    _, received = asyncio.run(hosts.update(weights))
    check(received, [(n, t.bfloat16() if t.is_floating_point() else t) for n, t in weights()])

    async def alone():
        hosts.build()
        await hosts.actors[0].send_weights(arriving())
        return {name: tensor.clone() async for name, tensor in hosts.workers[2].receive_weights()}

    check([asyncio.run(alone())], [(n, t.bfloat16() if t.is_floating_point() else t) for n, t in weights()])


def test_a_worker_takes_the_newest_version_without_the_trainer(fleet):
    hosts = fleet()
    hosts.build()
    for seed in (1, 2):
        asyncio.run(hosts.update(weights_of(seed)))
        hosts.build()

    async def newest():
        return {name: tensor.clone() async for name, tensor in hosts.workers[1].get_weights()}

    check([asyncio.run(newest())], weights_of(2)())


def test_a_restarted_worker_gets_the_next_update(fleet, token):
    hosts = fleet()
    hosts.build()
    asyncio.run(hosts.update(weights_of(1)))
    hosts.workers[2].close()
    old = hosts.workers[2]
    hosts.workers[2] = RelayCheckpointEngine(1, token=token, name=old._name, host="127.0.0.3", timeout_s=20)
    hosts.build()
    _, received = asyncio.run(hosts.update(weights_of(2)))
    check(received, weights_of(2)())


def test_a_worker_falls_back_on_the_relays_of_the_last_update(fleet, token):
    """Not on those of the first one, of which one has come back at another port since."""
    hosts = fleet()
    hosts.build()
    asyncio.run(hosts.update(weights_of(1)))
    old = hosts.workers[2]
    old.close()
    hosts.workers[2] = RelayCheckpointEngine(1, token=token, name=old._name, host="127.0.0.3", timeout_s=20)
    hosts.build()
    asyncio.run(hosts.update(weights_of(2)))
    for engine in (hosts.actors[0], hosts.workers[0]):
        engine._relay.kill()

    async def newest():
        return {name: tensor.clone() async for name, tensor in hosts.workers[1].get_weights()}

    check([asyncio.run(newest())], weights_of(2)())


def test_waits_end_and_calls_out_of_turn_are_refused(fleet, token):
    hosts = fleet()
    with pytest.raises(BridgeStateInvalid, match="belongs to an actor"):
        asyncio.run(hosts.actors[0].send_weights(weights_of(1)()))

    async def receive(engine):
        return [pair async for pair in engine.receive_weights()]

    with pytest.raises(BridgeStateInvalid, match="belongs to a rollout worker"):
        asyncio.run(receive(hosts.workers[0]))
    hosts.build()
    hosts.workers[0]._timeout_s = 0.2
    with pytest.raises(VersionNotYet, match="version 0"):
        asyncio.run(receive(hosts.workers[0]))


def test_holding_weights_for_too_long_is_reported(fleet):
    hosts = fleet(hold_s=0.5)
    hosts.build()

    async def slow():
        await hosts.actors[0].send_weights(weights_of(1)())
        stream = hosts.workers[2].receive_weights()
        await anext(stream)
        await stream.aclose()
        for seed in (2, 3, 4):  # two slots: the third of these needs the memory of the first update
            await asyncio.sleep(0.3)
            hosts.actors[0]._publisher.publish(seed, weights_of(seed)())
            await asyncio.to_thread(hosts.actors[0]._publisher.wait, seed, 20)
            with hosts.workers[1]._reader.lease(seed, timeout_s=20):
                pass

    asyncio.run(slow())
    with pytest.raises(LeaseExpired, match="may be a mixture"):
        hosts.workers[2].finalize()


@pytest.fixture(scope="session")
def verl(environment_with):
    """An interpreter with the release and this package. uvicorn and FastAPI are of verl's extra verl-core."""
    return environment_with(
        f"verl=={RELEASE}",
        "torch==2.13.0",
        "uvicorn",
        "fastapi",
        "xxhash",
        ours=("contracts", "processes", "paramserver"),
    )


def run(python, *words, folder, timeout_s):
    done = subprocess.run(
        list(map(str, (python, *words))), cwd=folder, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_verls_manager_updates_two_workers_though_relays_are_killed_in_mid_transfer(verl, tmp_path):
    script = Path(__file__).with_name("verl_updates.py")
    plan = ["whole", "whole", "second", "whole", "first", "whole"]
    happened = run(verl, script, 256, *plan, folder=tmp_path, timeout_s=1500)
    assert [each["update"] for each in happened] == plan
    order = ["abort_all_requests", "release_kv_cache", "resume_kv_cache", "resume_generation"]
    for each in happened:
        print({name: each[name] for name in ("update", "seconds", "killed_at", "error", "metrics")})
        assert each["wrong"] == []
        if each["update"] != "whole":
            assert each["killed_at"] is not None, "no relay was killed in the middle of a transfer"
        if each["update"] == "first":  # what it alone had is lost: an error of one line, and the next update is right
            assert each["error"] in (None, "VersionNotYet")
            continue
        assert each["error"] is None
        assert each["calls"] == [name for name in order for _ in range(2)]
        assert each["metrics"]["tailrace/stall_s"] > 0
    (killed,) = [each for each in happened if each["update"] == "second"]
    assert killed["read"][0] != killed["relays"][1]


SIGNATURES_OF = """
import inspect, json
from verl.checkpoint_engine.base import CheckpointEngineRegistry, CheckpointEngineWithCache
from verl.utils.import_utils import import_external_libs

import_external_libs("tailrace.paramserver.bridges.verl")
cls = CheckpointEngineRegistry.get("tailrace")
assert issubclass(cls, CheckpointEngineWithCache) and not cls.__abstractmethods__
for arguments in {constructions}:
    CheckpointEngineRegistry.new("tailrace", token="t" * 32, **arguments).close()


def signature(function):
    found = inspect.signature(function)
    bare = [each.replace(annotation=each.empty) for each in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=found.empty))


print(json.dumps({{name: signature(getattr(CheckpointEngineWithCache, name)) for name in {names}}}))
"""


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_the_recorded_signatures_are_those_of_the_release_which_finds_the_engine_by_its_name(verl, tmp_path):
    code = SIGNATURES_OF.format(constructions=CONSTRUCTIONS, names=list(SIGNATURES))
    assert run(verl, "-c", code, folder=tmp_path, timeout_s=600) == SIGNATURES
