"""What is offloaded may not be used, and comes back bit for bit; a run that offloads between steps computes the same."""

import dataclasses
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from tailrace.trainer import AdapterConfig, TrainerConfig, TrainerConfigError, TrainerError
from tailrace.trainer.errors import OffloadedError
from tailrace.trainer.offload import HostParts
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import inside, make_experiences
from tailrace.trainer.worker import TrainerWorker

CONFIG = TrainerConfig(lr=0.01, device="cpu", threads=1)


@pytest.fixture
def model(tmp_path):
    return build_model(tmp_path / "model", vocab_size=31, hidden=16, layers=1, head_dim=8, mlp=32)


def batch(seed):
    return make_experiences(2, 3, vocab_size=31, seed=seed)


def weights(worker):
    return {name: tensor.clone() for name, tensor in worker.weights()}


@pytest.mark.parametrize("moves", [False, True])  # as on a CPU, and as on a GPU
def test_the_three_parts(model, moves, tmp_path):
    with TrainerWorker(model, CONFIG) as worker:
        inside(worker)._host = HostParts(torch.device("cpu"), moves)
        worker.step([batch(1)])
        expected = weights(worker)
        moments = {key: tensor.clone() for key, tensor in worker._model.state()}
        everything = ["parameters", "optimizer"]
        moved = worker.offload(everything)
        sizes = sum(tensor.nbytes for tensor in moments.values())
        assert moved == (sizes if moves else 0)
        assert worker.offload(everything) == 0  # there already
        assert (
            inside(worker)._host.nbytes == moved
        )  # not each tensor's next power of two, as torch's pinned memory has it
        if moves:
            assert all(shard.untyped_storage().nbytes() == 0 for shard in inside(worker).local.values())
        for use in (lambda: weights(worker), lambda: dict(worker.shards()), lambda: worker.step([batch(2)]),
                    lambda: worker.save(tmp_path / "1", 1)):  # fmt: skip
            with pytest.raises(OffloadedError, match="found the parameters offloaded"):
                use()
        assert worker.onload(["parameters"]) == (moved // 3 if moves else 0)
        with pytest.raises(OffloadedError, match="found the optimizer offloaded"):
            worker.step([batch(2)])
        worker.onload(everything)
        worker.offload(everything)
        worker.onload(everything)
        assert inside(worker)._host.nbytes == moved  # the same again
        found = dict(worker._model.state())
        assert all(torch.equal(found[key], tensor) for key, tensor in moments.items())
        assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(worker).items())


@pytest.mark.skipif(find_spec("peft") is None, reason="needs PEFT")
def test_the_frozen_base_of_an_adapter_moves_too(model):
    found = []
    for away in (False, True):
        with TrainerWorker(model, dataclasses.replace(CONFIG, adapter=AdapterConfig(rank=4))) as worker:
            inside(worker)._host = HostParts(torch.device("cpu"), True)
            worker.step([batch(1)])
            if away:
                held = [parameter.to_local().detach() for parameter in inside(worker).module.parameters()]
                assert worker.offload(["parameters"]) == sum(shard.nbytes for shard in held)
                assert all(shard.untyped_storage().nbytes() == 0 for shard in held)
                worker.onload(["parameters"])
            worker.step([batch(2)])
            found.append(weights(worker))
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


@pytest.mark.parametrize("moves", [False, True])
def test_gradients_of_a_part_of_a_batch_wait_in_host_memory(model, moves):
    found = []
    for away in (False, True):
        with TrainerWorker(model, CONFIG) as worker:
            inside(worker)._host = HostParts(torch.device("cpu"), moves)
            worker.accumulate([each for each in batch(1) if each.group == 0])
            if away:
                assert (worker.offload(["gradients"]) > 0) == moves
                with pytest.raises(OffloadedError, match="found the gradients offloaded"):
                    worker._model.total_gradients(1.0)
                worker.onload(["gradients"])
            worker.apply([each for each in batch(1) if each.group != 0])
            found.append(weights(worker))
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


@pytest.mark.parametrize("moves", [False, True])
def test_a_run_that_offloads_its_optimizer_computes_the_same_and_says_what_it_moved(model, moves, tmp_path):
    found = []
    for offload in ((), ("optimizer",)):
        with TrainerWorker(model, dataclasses.replace(CONFIG, offload=offload)) as worker:
            inside(worker)._host = HostParts(torch.device("cpu"), moves)
            worker.step([batch(1)])
            worker.save(tmp_path / f"1{offload}", 1).result(60)
            metrics = worker.step([batch(2), batch(3)])
            worker.load(tmp_path / f"1{offload}")
            worker.step([batch(4)])
            found.append(weights(worker))
            elements = sum(tensor.numel() for tensor in found[-1].values())
        assert ("offload_s" in metrics) == ("onload_s" in metrics) == bool(offload)
        if offload:  # two mini-batches: moments of 8 bytes per parameter, back and away each time
            assert metrics["offload_bytes"] == (2 * 2 * 8 * elements if moves else 0)
            with pytest.raises(TrainerError):
                inside(worker)._host.require("optimizer")
    assert all(torch.equal(tensor, found[1][name]) for name, tensor in found[0].items())


def test_other_parts_are_refused(model):
    wrong: Any = ("gradients",)
    with pytest.raises(TrainerConfigError, match=r"found offload = .'gradients'., expected"):
        TrainerConfig(offload=wrong)
    with TrainerWorker(model, CONFIG) as worker, pytest.raises(TrainerConfigError, match="found the part 'moments'"):
        worker.offload(["moments"])


def test_a_part_for_which_the_device_has_no_room_is_still_away(monkeypatch):
    host = HostParts(torch.device("cpu"), True)
    tensors = [torch.arange(5.0), torch.arange(7.0)]
    assert host.offload("parameters", tensors) == 48
    resize, calls = torch.UntypedStorage.resize_, []

    def full(storage, size):
        calls.append(size)
        if len(calls) == 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return resize(storage, size)

    monkeypatch.setattr(torch.UntypedStorage, "resize_", full)
    with pytest.raises(torch.OutOfMemoryError):
        host.onload("parameters")
    with pytest.raises(OffloadedError, match="found the parameters offloaded"):
        host.require("parameters")
    assert host.onload("parameters") == 48
    assert [tensor.tolist() for tensor in tensors] == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 6]]
