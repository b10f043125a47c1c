import os
import signal
import threading
import time
import uuid

import pytest

from tailrace.paramserver import Publisher, RelayReader, RelayUnreachable
from tailrace.pipeline.roles.transfer import WeightTransfer
from tailrace.pipeline.roles.weights import Base, OfferedWeights, RelayWeights
from tailrace.runtime.errors import RoleError
from tailrace.trainer import AdapterConfig, load_weights_file
from tailrace.trainer.errors import AdapterError


@pytest.fixture
def weights(token, tmp_path):
    weights = RelayWeights(token=token, checkpoints=tmp_path)
    yield weights
    weights.close()


def publish(token, relay, version, value):
    torch = pytest.importorskip("torch")
    with Publisher(relay.address, token=token) as publisher:
        publisher.publish(version, [("w", torch.full((1000,), float(value)))])
        publisher.wait(version, 20)


def loaded(weights, version, timeout_s=20.0):
    with weights.load(version, timeout_s) as tensors:
        (pair,) = tensors
        assert pair[0] == "w"
        return set(pair[1].tolist())


def test_it_goes_on_with_the_next_source(weights, token, spawn):
    first, second = spawn(), spawn()
    for relay in (first, second):
        publish(token, relay, 1, 1)
    weights.use((first.address, second.address))
    assert loaded(weights, 1) == {1.0}
    first.kill()
    assert loaded(weights, 1) == {1.0}
    weights.use((second.address,))
    assert loaded(weights, 1) == {1.0}
    third = spawn()
    publish(token, third, 2, 2)
    weights.use((third.address, second.address))  # the best one, though the other still works
    assert loaded(weights, 2) == {2.0}


def test_a_load_that_is_under_way_goes_on_with_new_sources(weights, token, spawn):
    relay, fresh, found = spawn(), spawn(), []
    publish(token, relay, 1, 1)
    publish(token, fresh, 2, 2)
    weights.use((relay.address,))
    loading = threading.Thread(target=lambda: found.append(loaded(weights, 2)), daemon=True)
    loading.start()
    time.sleep(0.3)
    relay.kill()
    weights.use((fresh.address,))
    loading.join(20)
    assert found == [{2.0}]


@pytest.mark.deep
def test_a_suspended_source_is_passed_over(weights, token, spawn):
    first, second = spawn(), spawn()
    for relay in (first, second):
        publish(token, relay, 1, 1)
    weights.use((first.address, second.address))
    os.kill(first.pid, signal.SIGSTOP)
    assert loaded(weights, 1) == {1.0}


def test_a_version_that_relays_dropped_comes_from_its_checkpoint(weights, token, spawn, model, tmp_path):
    (tmp_path / "3").symlink_to(model)
    expected = dict(load_weights_file(model))

    def from_checkpoint():
        with weights.load(3, 5.0) as tensors:
            assert all((tensor == expected[name]).all() for name, tensor in tensors)
            return len(tensors) == len(expected)

    assert from_checkpoint()  # no relay at all
    relay = spawn()
    weights.use((relay.address,))
    assert from_checkpoint()  # one that has nothing
    publish(token, relay, 4, 4)
    assert from_checkpoint()  # one that has a newer one
    publish(token, relay, 3, 3)
    assert loaded(weights, 3) == {3.0}  # one that has it
    relay.kill()
    assert from_checkpoint()  # one that is gone


def test_there_must_be_something(weights, spawn):
    with pytest.raises(RoleError, match="neither a relay nor a checkpoint of version 3"), weights.load(3, 1.0):
        pass
    relay = spawn()
    relay.kill()
    weights.use((relay.address,))
    with pytest.raises(RelayUnreachable), weights.load(3, 1.0):
        pass


class TestAdapters:
    """Adapters travel, and a replica merges them into the base that it has."""

    NAME = "base_model.model.layer.lora_{}.weight"

    @pytest.fixture
    def made(self, tmp_path):
        """A base, an adapter of rank 2, and the weights that an engine must get."""
        torch = pytest.importorskip("torch")
        from safetensors.torch import save_file

        draw = torch.Generator().manual_seed(1)
        base = {"layer.weight": torch.randn(5, 3, generator=draw), "norm.weight": torch.ones(3)}
        (tmp_path / "base").mkdir()
        save_file(base, str(tmp_path / "base" / "model.safetensors"))
        a, b = torch.randn(2, 3, generator=draw), torch.randn(5, 2, generator=draw)
        expected = {**base, "layer.weight": base["layer.weight"] + 3.0 * (b @ a)}
        return tmp_path / "base", {self.NAME.format("A"): a, self.NAME.format("B"): b}, expected

    def weights(self, token, tmp_path, base, rank=2, merges=True):
        config = AdapterConfig(rank=rank, alpha=6.0)
        return RelayWeights(token=token, checkpoints=tmp_path, base=Base(base, config, merges))

    def served(self, weights, version):
        with weights.load(version, 20.0) as tensors:
            return {name: tensor.clone() for name, tensor in tensors}

    def test_what_an_engine_gets_is_the_base_with_the_adapter(self, token, spawn, tmp_path, made):
        import torch
        from safetensors.torch import save_file

        base, adapter, expected = made
        relay, weights = spawn(), self.weights(token, tmp_path, base)
        with Publisher(relay.address, token=token) as publisher:
            publisher.publish(1, adapter.items())
            publisher.wait(1, 20)
        weights.use((relay.address,))
        found = [self.served(weights, 1)]
        relay.kill()
        (tmp_path / "2").mkdir()  # a version that relays dropped
        save_file(adapter, str(tmp_path / "2" / "adapter_model.safetensors"))
        weights.use(())
        found.append(self.served(weights, 2))
        for served in found:
            assert served.keys() == expected.keys()
            for name, tensor in served.items():
                torch.testing.assert_close(tensor, expected[name])
        weights.close()

    def test_an_engine_that_applies_adapters_gets_the_adapter_alone(self, token, spawn, tmp_path, made):
        import torch

        base, adapter, expected = made
        relay, weights = spawn(), self.weights(token, tmp_path, base, merges=False)
        with Publisher(relay.address, token=token) as publisher:
            publisher.publish(1, adapter.items())
            publisher.wait(1, 20)
        weights.use((relay.address,))
        with weights.load(1, 20.0) as found:
            assert (found.rank, found.scale, list(found.layers)) == (2, 3.0, ["layer.weight"])
            a, b = found.layers["layer.weight"]
            whole = dict(found.base())
            whole["layer.weight"] = whole["layer.weight"] + found.scale * (b @ a)
        assert whole.keys() == expected.keys()
        for name, tensor in whole.items():
            torch.testing.assert_close(tensor, expected[name])
        weights.close()

    @pytest.mark.parametrize("merges", [True, False])
    @pytest.mark.parametrize("fault", ["half", "rank", "layer", "shape", "none"])
    def test_an_adapter_that_would_not_reach_the_engine_is_an_error(self, tmp_path, token, made, fault, merges):
        import torch
        from safetensors.torch import save_file

        base, adapter, _ = made
        a, b = self.NAME.format("A"), self.NAME.format("B")
        other = {name.replace("layer", "absent"): tensor for name, tensor in adapter.items()}
        wrong = {"half": {a: adapter[a]}, "rank": adapter, "layer": other, "shape": {a: torch.ones(2, 4), b: adapter[b]},
                 "none": {}}[fault]  # fmt: skip
        (tmp_path / "1").mkdir()
        save_file(wrong, str(tmp_path / "1" / "adapter_model.safetensors"))
        if not merges and fault in ("layer", "shape"):
            pytest.skip("for the engine to find, which has the base")
        weights = self.weights(token, tmp_path, base, 4 if fault == "rank" else 2, merges)
        says = {"half": "expected A and B", "rank": "expected one of rank 4", "layer": "found no 'absent.weight' in the base",
                "shape": "of another model", "none": "would not reach the engine"}[fault]  # fmt: skip
        with pytest.raises(AdapterError, match=says):
            self.served(weights, 1)

    def test_what_a_control_publishes_is_whole_already(self, tmp_path, token, made):
        import torch
        from safetensors.torch import save_file

        base, _, expected = made
        (tmp_path / "1").mkdir()
        save_file(expected, str(tmp_path / "1" / "model.safetensors"))
        for merges in (True, False):
            found = self.served(self.weights(token, tmp_path, base, merges=merges), 1)
            assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.fixture
def offering(token, tmp_path):
    """Makes the weights of replicas that are peers, and what each offers."""
    made = []

    def make():
        offered = OfferedWeights(f"test-{uuid.uuid4().hex}", token, WeightTransfer())
        made.append((RelayWeights(token=token, checkpoints=tmp_path, offered=offered), offered))
        return made[-1]

    yield make
    for weights, offered in made:
        weights.close()
        offered.close()


def test_a_replica_passes_on_what_it_has_pulled_also_when_no_relay_lives(offering, token, spawn):
    (first, offered), (second, _), relay = offering(), offering(), spawn()
    publish(token, relay, 1, 1)
    first.use((relay.address,))
    assert loaded(first, 1) == {1.0}
    assert first.source_of(1) == relay.address
    relay.kill()
    assert loaded(first, 1) == {1.0}  # it is here
    assert first.source_of(1) == relay.address
    newer = spawn()
    publish(token, newer, 2, 2)
    first.use((newer.address,))
    assert [loaded(first, version) for version in (2, 1)] == [{2.0}, {1.0}]  # both are here
    assert [first.source_of(version) for version in (2, 1)] == [newer.address, relay.address]
    second.use((relay.address, offered.address))
    assert loaded(second, 1) == {1.0}
    assert (second.source_of(1), second.source_of(2)) == (offered.address, "")


def test_what_no_source_has_comes_from_its_checkpoint_at_once_and_is_not_passed_on(
    offering, token, spawn, model, tmp_path
):
    (tmp_path / "3").symlink_to(model)
    (weights, offered), relay = offering(), spawn()
    for sources in ((), ("127.0.0.1:1",), (relay.address,)):
        weights.use(sources)
        began = time.monotonic()
        with weights.load(3, 60.0) as tensors:
            assert len(list(tensors)) == len(dict(load_weights_file(model)))
        assert time.monotonic() - began < 30
        assert weights.source_of(3) == ""
    with RelayReader(offered.address, token=token) as reader:
        assert reader.versions() == []
    weights.use(("127.0.0.1:1",))
    with pytest.raises(RelayUnreachable), weights.load(4, 5.0):
        pass


def test_a_replica_whose_offer_is_gone_is_replaced(offering, until):
    _, offered = offering()
    offered.check()
    os.kill(offered.pid, signal.SIGKILL)

    def said():
        try:
            offered.check()
        except RoleError as error:
            return "of this replica is gone" in str(error)
        return False

    until(said, "the replica to say so")
