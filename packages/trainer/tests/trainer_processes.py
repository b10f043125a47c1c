"""What the tests run in processes of their own. A fork server that has imported torch once makes starting them quick."""

import dataclasses
import multiprocessing
from pathlib import Path

import torch
from safetensors.torch import save_file

from tailrace.trainer import TrainerConfig
from tailrace.trainer.testing import make_experiences
from tailrace.trainer.worker import TrainerWorker

VOCAB = 31
CONFIG = TrainerConfig(lr=0.01, device="cpu", grad_clip_norm=0.5, micro_batch_tokens=60, threads=1, timeout_s=60)
CONTEXT = multiprocessing.get_context("forkserver")
# Installed modules only: the fork server does not see this directory.
CONTEXT.set_forkserver_preload(["tailrace.trainer.worker", "transformers.models.qwen3.modeling_qwen3"])


def batch(seed):
    return make_experiences(3, 4, vocab_size=VOCAB, seed=seed)


def run_all(target, world_size, *arguments):
    """Run ``target(rank, world_size, *arguments)`` on every rank and expect success."""
    ranks = [CONTEXT.Process(target=target, args=(rank, world_size, *arguments)) for rank in range(world_size)]
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(120)
        assert [rank.exitcode for rank in ranks] == [0] * world_size
    finally:
        for rank in ranks:
            rank.kill()


def train(rank, world_size, model, rendezvous, out: Path):
    """Three steps, a checkpoint, a fourth; what rank 0 saw goes to a file."""
    worker = TrainerWorker(model, CONFIG, rank=rank, world_size=world_size, rendezvous=rendezvous)
    seen = {}
    apply = worker._state.apply_gradients

    def spy(lr):
        if not seen:
            for name, parameter in worker._state.parameters.items():
                seen[name] = parameter.grad.full_tensor().clone()
        return apply(lr)

    worker._state.apply_gradients = spy
    first = worker.step([batch(1), [dataclasses.replace(e, group=e.group + 3) for e in batch(2)]])
    # A single trajectory: the other rank has nothing of its own to compute, and must not hang or add anything.
    single = worker.step([batch(3)[:1]])
    supervised = worker.sft_step([((1, 2), (3, 4)), ((5,), (6,)), ((7,), (8, 9))], lr=0.01)
    worker.save(out / "checkpoint", 7).result(60)
    fourth = worker.step([batch(4)])
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
    worker.close()


def resume(rank, world_size, directory, rendezvous, out: Path):
    """Load a checkpoint and take the fourth step of `train`."""
    worker = TrainerWorker(directory, CONFIG, rank=rank, world_size=world_size, rendezvous=rendezvous)
    assert worker.load(directory) == 7
    worker.step([batch(4)])
    weights = {f"weight/{name}": tensor.clone() for name, tensor in worker.weights()}
    if rank == 0:
        save_file(weights, str(out))
    worker.close()


def save_for_ever(model, root: Path, saved):
    """Save a checkpoint after another until killed, and say so after each."""
    worker = TrainerWorker(model, TrainerConfig(lr=0.01, device="cpu", threads=1))
    for version in range(1, 1000):
        worker.save(root / f"v{version % 3}", version)
        saved.send(version)
