"""TorchRL's weight-sync scheme over relays: bits, versions, receivers that come late or die, and a collector of TorchRL's."""

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytest.importorskip("torchrl", reason="needs the extra torchrl")

import torch
from tensordict import TensorDict

from tailrace.paramserver import ChunkDamaged, ManifestInvalid, RelayUnreachable, VersionNotYet
from tailrace.paramserver.bridges.torchrl import RelayWeightSyncScheme
from tailrace.paramserver.errors import BridgeStateInvalid, WeightsMismatch

WAIT_S = 20


class Model(torch.nn.Module):
    def __init__(self, seed, width=6):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embed = torch.nn.Embedding(5, width)
        self.net = torch.nn.Sequential(torch.nn.Linear(width, 4), torch.nn.BatchNorm1d(4))
        self.head = torch.nn.Linear(width, 5, bias=False)
        self.head.weight = self.embed.weight
        self.turned = torch.nn.Parameter(torch.empty(width, 3).t())
        self.brief = torch.nn.Parameter(torch.empty(2, 7, dtype=torch.bfloat16))
        self.register_buffer("mask", torch.zeros(9, dtype=torch.bool))
        with torch.no_grad():
            for tensor in [*self.parameters(), *self.buffers()]:
                tensor.copy_(torch.randint(-5, 6, tensor.shape, generator=generator).to(tensor.dtype))


def same(first, second):
    first, second = first.state_dict(), second.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def sender(token):
    """Schemes of trainers, connected: they published their model's first version."""
    schemes = []

    def make(relay, model, **options):
        scheme = RelayWeightSyncScheme(relay.address, token=token, **{"timeout_s": WAIT_S, "wait": True} | options)
        schemes.append(scheme)
        scheme.init_on_sender(model=model, model_id="policy")
        scheme.connect()
        return scheme

    yield make
    for scheme in schemes:
        scheme.shutdown()


@pytest.fixture
def receiver(token):
    """Schemes of collectors, connected, without a thread unless told otherwise."""
    schemes = []

    def make(relay, model, **options):
        scheme = RelayWeightSyncScheme(
            relay.address, token=token, **{"timeout_s": WAIT_S, "background": False} | options
        )
        schemes.append(scheme)
        scheme.init_on_receiver(model=model, model_id="policy", worker_idx=len(schemes))
        scheme.connect()
        return scheme

    yield make
    for scheme in schemes:
        scheme.shutdown()


def change(model):
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.add_(1)


def test_each_version_arrives_in_place_bit_for_bit(serve, sender, receiver):
    relay, trainer, policy = serve(), Model(1), Model(2)
    places = {name: tensor.data_ptr() for name, tensor in policy.state_dict().items()}
    sends = sender(relay, trainer)
    receives = receiver(relay, policy)  # TorchRL's connect brings the first version
    assert same(trainer, policy)
    assert (sends.version, receives.version) == (0, 0)
    assert receives.receive() is None  # nothing newer, and no waiting
    change(trainer)
    assert not same(trainer, policy)
    sends.send()
    got = receives.receive()
    assert same(trainer, policy)
    assert (sends.version, receives.version) == (1, 1)
    assert got["net", "0", "weight"].data_ptr() == policy.net[0].weight.data_ptr()
    assert places == {name: tensor.data_ptr() for name, tensor in policy.state_dict().items()}
    assert policy.head.weight is policy.embed.weight
    sends.send(TensorDict.from_module(Model(3)))  # what collectors pass
    assert receives.receive(WAIT_S) is not None
    assert same(Model(3), policy)


def test_a_policy_without_memory_gets_its_own(serve, sender, receiver):
    """The processes of TorchRL's collectors have it so."""
    relay, trainer = serve(), Model(1)
    policy = Model(2).to("meta")
    sends, receives = sender(relay, trainer), receiver(relay, policy)
    assert same(trainer, policy)
    before = trainer.net[0].weight.clone()
    for _ in range(3):  # more versions than the relay has slots: what it lent is overwritten
        change(trainer)
        sends.send()
    assert torch.equal(policy.net[0].weight, before)
    assert receives.receive() is not None
    assert same(trainer, policy)


def test_a_policy_that_was_copied_is_loaded_too(serve, sender, receiver):
    relay, trainer, policy, copied = serve(), Model(1), Model(2), Model(3)
    sender(relay, trainer)
    receives = receiver(relay, policy)
    receives.model = copied  # TorchRL says so to the scheme
    assert receives.receive() is not None
    assert same(trainer, copied)
    assert receives.receive() is None


def test_who_comes_late_takes_the_newest_and_who_was_slow_skips(serve, sender, receiver):
    relay, trainer, slow, late = serve(), Model(1), Model(2), Model(3)
    sends, slowly = sender(relay, trainer), receiver(relay, slow)
    for _ in range(4):
        change(trainer)
        sends.send()
    assert receiver(relay, late).version == 4
    assert slowly.receive() is not None
    assert slowly.version == 4
    assert same(late, trainer)
    assert same(slow, trainer)


def test_a_trainer_that_comes_back_goes_on_behind_its_last_version(serve, sender, receiver):
    relay, trainer, policy = serve(), Model(1), Model(2)
    receives = None
    for run in range(2):
        change(trainer)
        sends = sender(relay, trainer)
        receives = receives or receiver(relay, policy)
        assert sends.version == run
        sends.shutdown()
    assert receives.receive() is not None
    assert same(trainer, policy)


def test_a_thread_of_the_receiver_takes_new_versions(serve, sender, receiver, until):
    relay, trainer, policy = serve(), Model(1), Model(2)
    sends = sender(relay, trainer, wait=False)
    receives = receiver(relay, policy, background=True)
    for version in range(1, 4):
        change(trainer)
        sends.send()
        until(lambda version=version: receives.version == version, f"version {version}")
        assert same(trainer, policy)
    thread = receives._background_thread
    receives.shutdown()
    assert not thread.is_alive()


def test_the_scheme_travels_without_its_connections(serve, sender, receiver):
    relay, trainer = serve(), Model(1)
    sends = sender(relay, trainer)
    copy = pickle.loads(pickle.dumps(sends))
    policy = Model(2)
    copy.init_on_receiver(model=policy, model_id="policy")
    copy.connect()
    assert same(trainer, policy)
    copy.shutdown()
    sends.send()  # the original still sends


def test_a_model_that_differs_is_named_and_unchanged(serve, sender, receiver):
    relay, trainer, policy = serve(), Model(1), Model(2)
    sends = sender(relay, trainer)
    receives = receiver(relay, policy)
    for weights, message in [
        (
            TensorDict.from_module(Model(3, width=5)),
            r"found torch.float32 \[3, 5\] in version 1, expected torch.float32 \[3, 6\] as in the model",
        ),
        (
            {"a": torch.zeros(1)},
            r"version 2: found other tensors than the model's, expected the same: the model has and it lacks",
        ),
    ]:
        sends.send(weights)
        with pytest.raises(WeightsMismatch, match=message) as found:
            receives.receive()
        assert "\n" not in str(found.value)
        assert same(Model(1), policy)
    assert receives.version == 0
    sends.send(TensorDict.from_module(Model(4)))
    assert receives.receive() is not None
    assert same(Model(4), policy)


def test_a_damaged_version_changes_nothing(serve, sender, receiver, monkeypatch):
    relay, trainer, policy = serve(), Model(1), Model(2)
    sends, receives = sender(relay, trainer), receiver(relay, policy)
    sends.send(Model(3))
    with monkeypatch.context() as patch:
        patch.setattr("tailrace.paramserver.clients.lease_view.checksum", lambda data: 1)
        with pytest.raises(ChunkDamaged):
            receives.receive()
    assert same(Model(1), policy)
    assert receives.version == 0
    assert receives.receive() is not None
    assert same(Model(3), policy)


def test_waits_have_a_deadline(serve, token):
    relay = serve()
    scheme = RelayWeightSyncScheme(relay.address, token=token, timeout_s=0.2)
    scheme.init_on_receiver(model=Model(1), model_id="policy")
    with pytest.raises(VersionNotYet, match=r"no version became visible on .* in 0\.2 s"):
        scheme.connect()
    scheme.shutdown()
    gone = relay.address
    relay.close()
    scheme = RelayWeightSyncScheme(gone, token=token)
    with pytest.raises(RelayUnreachable):
        scheme.init_on_sender(model=Model(1), model_id="policy")


def test_what_relays_do_not_do_is_one_line(serve, sender, token, monkeypatch):
    relay, trainer = serve(), Model(1)
    sends = sender(relay, trainer)
    with pytest.raises(BridgeStateInvalid, match=r"found worker_ids=\[1\], expected None"):
        sends.send(worker_ids=[1])
    with pytest.raises(ManifestInvalid, match=r"'name': found a .* among the weights, expected tensors alone"):
        sends.send(TensorDict({"name": "not a tensor"}))
    monkeypatch.delenv("TAILRACE_RELAY_TOKEN", raising=False)
    without = RelayWeightSyncScheme(relay.address)
    with pytest.raises(BridgeStateInvalid, match=r"found no token for the relays, expected TAILRACE_RELAY_TOKEN"):
        without.init_on_sender(model=Model(1), model_id="policy")
    nothing = RelayWeightSyncScheme(relay.address, token=token)
    nothing.init_on_sender(model_id="policy")
    with pytest.raises(BridgeStateInvalid, match=r"found no model to send"):
        nothing.connect()
    nothing.shutdown()


@pytest.mark.deep
def test_a_receiver_that_dies_holds_nothing_up(spawn, sender, receiver, token):
    relay, trainer = spawn(), Model(1)
    program = """
        import sys, time, torch
        from tailrace.paramserver.bridges.torchrl import RelayWeightSyncScheme
        model = torch.nn.Linear(256, 256)
        scheme = RelayWeightSyncScheme(sys.argv[1], background=False)
        scheme.init_on_receiver(model=model, model_id="policy")
        def slowly(*args, **options):
            print("copying", flush=True)  # while it holds the version
            time.sleep(600)
        scheme._strategy.apply_weights = slowly
        scheme.connect()
    """
    trainer = torch.nn.Linear(256, 256)
    sends = sender(relay, trainer)
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), relay.address],
        env=os.environ | {"TAILRACE_RELAY_TOKEN": token, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout.readline() == "copying\n"
        child.send_signal(signal.SIGKILL)
    finally:
        child.kill()
        child.wait(WAIT_S)
    for _ in range(3):  # more versions than the relay has slots
        change(trainer)
        sends.send()
    policy = torch.nn.Linear(256, 256)
    assert receiver(relay, policy).version == 3
    assert torch.equal(policy.weight, trainer.weight)


COLLECTOR = """
import sys
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.collectors import MultiSyncCollector
from torchrl.data import Composite, Unbounded
from torchrl.envs import EnvBase
from tailrace.paramserver.bridges.torchrl import RelayWeightSyncScheme


class Counter(EnvBase):
    '''Observes 1; an action is what the policy's weight makes of it.'''

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((1,)))
        self.action_spec, self.reward_spec = Unbounded((1,)), Unbounded((1,))

    def _reset(self, tensordict=None, **_):
        return TensorDict({"observation": torch.ones(1), "done": torch.zeros(1, dtype=torch.bool)})

    def _step(self, tensordict):
        done = torch.zeros(1, dtype=torch.bool)
        return TensorDict({"observation": torch.ones(1), "reward": tensordict["action"], "done": done})

    def _set_seed(self, seed):
        pass


if __name__ == "__main__":
    torch.set_num_threads(1)
    policy = TensorDictModule(torch.nn.Linear(1, 1, bias=False), in_keys=["observation"], out_keys=["action"])
    torch.nn.init.constant_(policy.module.weight, 1.0)
    scheme = RelayWeightSyncScheme(sys.argv[1], wait=True)
    collector = MultiSyncCollector(
        [Counter, Counter], policy, frames_per_batch=8, total_frames=-1, weight_sync_schemes={"policy": scheme}
    )
    try:
        seen = []
        for batch in collector:
            seen.append(batch["action"].unique().tolist())
            if seen[-1] == [2.0]:
                break
            assert len(seen) < 20000
            if len(seen) == 1:
                torch.nn.init.constant_(policy.module.weight, 2.0)
                collector.update_policy_weights_()  # of `policy`
        print(seen[0], seen[-1], scheme.version)
    finally:
        collector.shutdown()
"""


@pytest.mark.deep
@pytest.mark.timeout(600)
def test_a_collector_of_torchrl_acts_on_what_its_trainer_published(spawn, token, tmp_path):
    """Two worker processes of a MultiSyncCollector, which calls all that a scheme has."""
    script = tmp_path / "collect.py"
    script.write_text(COLLECTOR)
    started = time.monotonic()
    found = subprocess.run(
        [sys.executable, script, spawn().address],
        env=os.environ | {"TAILRACE_RELAY_TOKEN": token, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=580,
    )
    print(f"{time.monotonic() - started:.0f} s", found.stderr)
    assert found.returncode == 0
    assert found.stdout.splitlines()[-1] == "[1.0] [2.0] 1"
