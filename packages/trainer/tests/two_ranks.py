"""One rank of `test_two_processes`: python two_ranks.py MODEL RANK WORLD_SIZE RENDEZVOUS OUT."""

import dataclasses
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tailrace.trainer import TrainerConfig
from tailrace.trainer.testing import make_experiences
from tailrace.trainer.worker import TrainerWorker

VOCAB = 31
CONFIG = TrainerConfig(lr=0.01, device="cpu", grad_clip_norm=0.5, micro_batch_tokens=60, threads=1, timeout_s=60)


def batch(seed):
    return make_experiences(3, 4, vocab_size=VOCAB, seed=seed)


def run(model, rank, world_size, rendezvous, out):
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
    third = worker.step([batch(4)])
    weights = {name: tensor.clone() for name, tensor in worker.weights()}
    if rank == 0:
        metrics = {
            f"metrics/{n}.{name}": torch.tensor(value, dtype=torch.float64)
            for n, step in enumerate((first, single, supervised, third))
            for name, value in step.items()
            if not name.endswith("_s")
        }
        gradients = {f"gradient/{name}": value for name, value in seen.items()}
        save_file(metrics | gradients | {f"weight/{k}": v for k, v in weights.items()}, str(out / "result.safetensors"))
    worker.close()


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], Path(sys.argv[5]))
