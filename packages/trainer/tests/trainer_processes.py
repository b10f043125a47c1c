"""What the tests run in processes of their own. A fork server that has imported torch once makes starting them quick."""

import dataclasses
import inspect
import json
import multiprocessing
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from tailrace.trainer import BatchError, TrainerConfig
from tailrace.trainer.backends import deepspeed, fsdp2
from tailrace.trainer.packed import PackedBatch
from tailrace.trainer.testing import PackedData, make_experiences
from tailrace.trainer.worker import TrainerWorker

VOCAB = 31
CONFIG = TrainerConfig(lr=0.01, device="cpu", grad_clip_norm=0.5, micro_batch_tokens=60, threads=1, timeout_s=60)
CONTEXT = multiprocessing.get_context("forkserver")
# Installed modules only: the fork server does not see this directory.
PRELOADED = ["tailrace.trainer.worker", "transformers.models.qwen3.modeling_qwen3"]
if find_spec("deepspeed") is not None:  # seconds in each rank otherwise
    PRELOADED.append("deepspeed.runtime.zero.muon.muon_optimizer")
CONTEXT.set_forkserver_preload(PRELOADED)


def batch(seed):
    return make_experiences(3, 4, vocab_size=VOCAB, seed=seed, turns=2)


def run_all(target, world_size, *arguments, timeout_s=120):
    """Run ``target(rank, world_size, *arguments)`` on every rank and expect success. Any test file may define it."""
    where = inspect.getfile(target), target.__name__
    ranks = [CONTEXT.Process(target=call, args=(*where, rank, world_size, *arguments)) for rank in range(world_size)]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(timeout_s)
        assert [rank.exitcode for rank in ranks] == [0] * world_size
    finally:
        for rank in ranks:
            rank.kill()


def call(path, name, *arguments):
    """Call a function of a file: the name under which pytest imported it is none that another process can import."""
    sys.path.insert(0, str(Path(path).parent))
    getattr(import_module(Path(path).stem), name)(*arguments)


def build(model, config, rank, world_size, rendezvous):
    """A rank of FSDP2; with a stage of ZeRO, of DeepSpeed."""
    build_backend = deepspeed if config.zero_stage else fsdp2
    return build_backend(model, config, rank=rank, world_size=world_size, rendezvous=rendezvous)


def gradient(parameter):
    """A whole gradient before it is clipped. Collective."""
    if hasattr(parameter.grad, "full_tensor"):
        return parameter.grad.full_tensor().clone()
    from deepspeed.utils import safe_get_full_grad

    return safe_get_full_grad(parameter).clone()


def never_whole():
    """In this process all models count as large, and nothing may load one whole."""

    def refuse(*_, **__):
        raise AssertionError("a rank loaded the whole model")

    loads: dict[str, Any] = {"load_policy": refuse, "load_value_model": refuse}
    small: dict[str, Any] = {"SMALL_MODEL_PARAMETERS": 0}
    for name, changes in {"sharded_model": loads, "fsdp2": small, "deepspeed": small}.items():
        if name == "deepspeed" and find_spec(name) is None:
            continue
        module = import_module(f"tailrace.trainer.{name}")
        for key, value in changes.items():
            assert hasattr(module, key)
            setattr(module, key, value)


class Packing:
    """Batches as they are, or packed: their tokens are fetched, 50 bytes at a time. `fetched` has the ids of each batch."""

    def __init__(self, packed):
        self._packed = packed
        self.fetched = []

    def __call__(self, *parts):
        if not self._packed:
            return list(parts)
        data = PackedData(e for part in parts for e in part)
        self.fetched.append(data.fetched)
        batch = PackedBatch(data.outlines(list(data.made)), data.packed, slice_bytes=50)
        experiences = {e.trajectory: e for e in batch.experiences}
        return [[experiences[e.trajectory] for e in part] for part in parts]

    def write(self, path):
        if self._packed:
            path.write_text(json.dumps([[name for call in batch for name in call] for batch in self.fetched]))


def renumbered(experiences, by):
    """The same as other groups."""
    return [dataclasses.replace(e, group=e.group + by, trajectory=f"{by}+{e.trajectory}") for e in experiences]


def train(rank, world_size, model, rendezvous, out: Path, config=CONFIG, packed=False):
    """Three steps, a checkpoint, a fourth; what rank 0 saw goes to a file."""
    given = Packing(packed)
    worker = build(model, config, rank, world_size, rendezvous)
    seen = {}
    apply = worker._model.apply_gradients

    def spy(lr):
        if not seen:
            for name, parameter in worker._model.parameters.items():
                seen[name] = gradient(parameter)
        return apply(lr)

    worker._model.apply_gradients = spy
    first = worker.step(given(batch(1), renumbered(batch(2), 3)))
    # A single trajectory: the other rank has nothing of its own to compute, and must not hang or add anything.
    single = worker.step(given(batch(3)[:1]))
    supervised = worker.sft_step([((1, 2), (3, 4), (False, True)), ((5,), (6,)), ((7,), (8, 9))], lr=0.01)
    worker.save(out / "checkpoint", 7).result(60)
    fourth = worker.step(given(batch(4)))
    weights = {f"weight/{name}": tensor.clone() for name, tensor in worker.weights()}
    if rank == 0:
        metrics = {
            f"metrics/{number} {name}": torch.tensor(value, dtype=torch.float64)
            for number, step in enumerate((first, single, supervised, fourth))
            for name, value in step.items()
            if not name.endswith("_s")
        }
        gradients = {f"gradient/{name}": value for name, value in seen.items()}
        save_file(metrics | gradients | weights, str(out / "result.safetensors"))
    given.write(out / f"fetched-{rank}.json")
    worker.close()


def stream(rank, world_size, cells, shares, model, rendezvous, out: Path, config=CONFIG, packed=False):
    """Two batches by cells, each with its share of the groups, then a checkpoint and a plain step. Rank 0 writes what it saw.

    Without shares, both batches are plain steps.
    """
    config = dataclasses.replace(config, cells=cells, kl_coefficient=0.1)
    worker = build(model, config, rank, world_size, rendezvous)
    seen, metrics, given = {}, {}, Packing(packed)
    apply = worker._model.apply_gradients
    cell = rank // (world_size // cells)

    def spy(lr):
        number = len(metrics)
        for name, parameter in worker._model.parameters.items():
            seen[f"gradient/{number} {name}"] = gradient(parameter)
        return apply(lr)

    worker._model.apply_gradients = spy
    for number in range(3):
        groups = [[e for e in long_batch(number) if e.group == group] for group in range(6)]
        if shares is None or number == 2:
            metrics[number] = worker.step(given([experience for group in groups for experience in group]))
            continue
        for group in groups[sum(shares[:cell]) : sum(shares[: cell + 1])]:
            worker.accumulate(*given(group))
        metrics[number] = worker.apply(*given([experience for group in groups[sum(shares) :] for experience in group]))
        worker.save(out / f"v{number}", number).result(60)
    weights = {f"weight/{name}": tensor.clone() for name, tensor in worker.weights()}
    layout = worker.layout()
    assert sorted(layout.shards) == [f"rank{other}" for other in range(world_size)]
    for name, shard in worker.shards():
        (mine,) = [buffer for buffer in layout.shards[f"rank{rank}"].buffers if buffer.name == name]
        assert tuple(shard.shape) == mine.shape
    if rank == 0:
        told = {
            f"metrics/{number} {name}": torch.tensor(value, dtype=torch.float64)
            for number, step in metrics.items()
            for name, value in step.items()
            if not name.endswith("_s") and not name.startswith("version_")
        }
        save_file(told | seen | weights, str(out / "result.safetensors"))
    worker.close()


def long_batch(seed):
    return make_experiences(6, 3, vocab_size=VOCAB, seed=50 + seed, turns=2)


def twice(rank, world_size, model, rendezvous, out: Path):
    """Both cells add the same group: every rank is told, and goes on with another batch."""
    config = dataclasses.replace(CONFIG, cells=2)
    worker = TrainerWorker(model, config, rank=rank, world_size=world_size, rendezvous=rendezvous)
    groups = [[e for e in long_batch(0) if e.group == group] for group in range(6)]
    worker.accumulate(groups[0])
    try:
        worker.apply(groups[1])
    except BatchError as error:
        (out / f"rank{rank}").write_text(str(error))
    if rank:  # a group of one cell comes again in the rest, which the other cell does not know
        worker.accumulate(groups[0])
    try:
        worker.apply(groups[0])
    except BatchError as error:
        (out / f"rest{rank}").write_text(str(error))
    worker.step([groups[2]])
    assert worker.steps == 1
    worker.close()


def resume_in_cells(rank, world_size, cells, directory, rendezvous, out: Path):
    """Load the checkpoint of `stream` and take its last step."""
    config = dataclasses.replace(CONFIG, cells=cells, kl_coefficient=0.1)
    worker = TrainerWorker(
        directory.parent.parent / "model", config, rank=rank, world_size=world_size, rendezvous=rendezvous
    )
    assert worker.load(directory) == 1
    worker.step([long_batch(2)])
    weights = {f"weight/{name}": tensor.clone() for name, tensor in worker.weights()}
    if rank == 0:
        save_file(weights, str(out))
    worker.close()


def resume(rank, world_size, directory, rendezvous, out: Path, config=CONFIG):
    """Load a checkpoint and take the fourth step of `train`."""
    worker = build(directory, config, rank, world_size, rendezvous)
    assert worker.load(directory) == 7
    worker.step([batch(4)])
    weights = {f"weight/{name}": tensor.clone() for name, tensor in worker.weights()}
    if rank == 0:
        save_file(weights, str(out))
    worker.close()


def resume_adapter(rank, world_size, model, rendezvous, out: Path, config):
    """Load the checkpoint of `train` into the model that it began with, and take its fourth step."""
    worker = TrainerWorker(model, config, rank=rank, world_size=world_size, rendezvous=rendezvous)
    assert worker.load(out / "checkpoint") == 7
    worker.step([batch(4)])
    weights = {f"weight/{name}": tensor.clone() for name, tensor in worker.weights()}
    if rank == 0:
        save_file(weights, str(out / "resumed.safetensors"))
    worker.close()


def save_for_ever(model, root: Path, saved):
    """Save a checkpoint after another until killed, and say so after each."""
    worker = TrainerWorker(model, TrainerConfig(lr=0.01, device="cpu", threads=1))
    for version in range(1, 1000):
        worker.save(root / f"v{version % 3}", version)
        saved.send(version)


def whole_gradients(model):
    """The summed gradients under Hugging Face names, of any backend's model. Collective."""
    if hasattr(model, "_gatherer"):
        gradients = {name: shard.grad for name, shard in model.local.items()}
        return {name: model._gatherer.whole(name, gradients).clone() for name in model.shapes}
    return {name: gradient(parameter) for name, parameter in model.parameters.items()}


def run_cases(rank, world_size, cases, root: Path):
    """Train by backends, one case after the other in the same processes; rank 0 writes what each saw.

    Args:
        cases: name -> backend, what is changed of the configuration, the model's name, groups that each cell adds before the
            rest, checkpoint to load first.
    """
    from tailrace.trainer.backend import build_backend

    for case, (backend, changes, model, shares, checkpoint) in cases.items():
        config = dataclasses.replace(CONFIG, **changes)
        meet = f"file://{root}/meet {case}" if world_size > 1 else None
        worker = build_backend(backend, root / model, config, rank=rank, world_size=world_size, rendezvous=meet)
        saw = train_case(worker, shares, checkpoint and root / checkpoint, root / f"{case} saved")
        if rank == 0:
            save_file(saw, str(root / f"{case}.safetensors"))
        worker.close()


def train_case(worker, shares, checkpoint, saved):
    """Two batches of six groups, a checkpoint after the first; that is loaded and the second one repeated."""
    if checkpoint:
        assert worker.load(checkpoint) == 0
    saw, apply = {}, worker._model.apply_gradients

    def spy(lr):
        number = worker.steps
        saw.update({f"gradient/{number} {name}": value for name, value in whole_gradients(worker._model).items()})
        return apply(lr)

    worker._model.apply_gradients = spy
    cell = worker.rank // (worker.world_size // worker.config.cells)
    first = 1 if checkpoint else 0
    for number in range(first, 2):
        groups = [[e for e in long_batch(number) if e.group == group] for group in range(6)]
        if shares is None:
            metrics = worker.step([[each for group in groups for each in group]])
        else:
            for group in groups[sum(shares[:cell]) : sum(shares[: cell + 1])]:
                worker.accumulate(group)
            metrics = worker.apply([each for group in groups[sum(shares) :] for each in group])
        for name, value in metrics.items():
            if not name.endswith("_s") and not name.startswith("version_"):
                saw[f"metrics/{number} {name}"] = torch.tensor(value, dtype=torch.float64)
        if number == 0:
            worker.save(saved, 0).result(60)
    weights = {name: tensor.clone() for name, tensor in worker.weights()}
    layout, shards = worker.layout(), dict(worker.shards())
    mine = layout.shards[f"rank{worker.rank}"]
    assert {buffer.name: buffer.shape for buffer in mine.buffers} == {
        name: tuple(shard.shape) for name, shard in shards.items()
    }
    for buffer in mine.buffers:
        for piece in buffer.pieces:
            at = tuple(slice(at, at + stop - start) for at, (start, stop) in zip(piece.at, piece.box, strict=True))
            box = tuple(slice(start, stop) for start, stop in piece.box)
            assert torch.equal(shards[buffer.name][at], weights[piece.tensor][box]), piece
    if not checkpoint and shares is None:  # the step after loading repeats bit for bit
        assert worker.load(saved) == 0
        worker.step([long_batch(1)])
        for name, tensor in worker.weights():
            assert torch.equal(tensor, weights[name]), name
    return saw | {f"weight/{name}": tensor for name, tensor in weights.items()}
