"""What the ranks of a trainer do in processes of their own. A fork server that has imported torch once starts them quickly."""

import multiprocessing

from safetensors.torch import save_file

from tailrace.trainer import TrainerConfig
from tailrace.trainer.testing import inside, make_experiences
from tailrace.trainer.worker import TrainerWorker

VOCAB, GROUPS, SAMPLES = 31, 6, 2
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tailrace.trainer.worker", "transformers.models.qwen3.modeling_qwen3"])


def experiences():
    """A batch by trajectory, of responses of very different lengths."""
    return {one.trajectory: one for one in make_experiences(GROUPS, SAMPLES, vocab_size=VOCAB, seed=7, max_response=30)}


def train(rank, world_size, cells, given, model, rendezvous, out):
    """Carry out what a controller gave the trainer: (cell, names) to add gradients of, None for the step. Rank 0 writes it.

    The gradient is that before clipping; with it is the number of optimizer steps.
    """
    config = TrainerConfig(lr=0.01, device="cpu", cells=cells, threads=1, timeout_s=60)
    worker = TrainerWorker(model, config, rank=rank, world_size=world_size, rendezvous=rendezvous)
    found, batch, apply = {}, experiences(), worker._model.apply_gradients

    def spy(lr):
        for name, parameter in inside(worker).parameters.items():
            found[name] = parameter.grad.full_tensor().clone()
        return apply(lr)

    worker._model.apply_gradients = spy
    for cell, names in given:
        part = [batch[name] for name in names]
        if cell is None and len(given) == 1:
            worker.step([part])
        elif cell is None:
            worker.apply(part)
        elif cell == rank // (world_size // cells):
            worker.accumulate(part)
    assert worker.steps == 1
    if rank == 0:
        save_file(found, str(out))
    worker.close()
