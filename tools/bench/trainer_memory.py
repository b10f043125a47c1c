"""Memory that a rank of the trainer needs: predicted by arithmetic (`tailrace.trainer.memory`) beside measured on a CPU.

    uv run python tools/bench/trainer_memory.py [--sizes N] [--tokens T] [--loss ppo] [--json FILE]

Each size is a process that loads a model and does two optimizer steps of two micro-batches, each a response of T tokens.
Measured is by how much its resident memory grew at most in the second step, beyond what it was before the model was loaded but
after a step on a tiny one. glibc gives back what is freed, as it does not by default for blocks below 32 MiB. The limit: 10 %.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shard_memory import MIB, forget, resident

SIZES: dict[str, tuple[dict[str, int], str]] = {
    # name: (shape of a Qwen3, activation checkpointing)
    "22 million, one unit": ({"hidden": 512, "layers": 6, "mlp": 1536, "heads": 8, "head_dim": 64, "vocab_size": 4096}, "auto"),
    "65 million, layers keep all": (
        {"hidden": 768, "layers": 8, "mlp": 2304, "heads": 12, "head_dim": 64, "vocab_size": 8192}, "off"),
    "65 million, layers keep inputs": (
        {"hidden": 768, "layers": 8, "mlp": 2304, "heads": 12, "head_dim": 64, "vocab_size": 8192}, "on"),
    "164 million, layers keep inputs": (
        {"hidden": 1024, "layers": 12, "mlp": 3072, "heads": 16, "head_dim": 64, "vocab_size": 8192}, "auto"),
}  # fmt: skip


def measured(shape: dict[str, int], checkpointing: str, tokens: int, loss: str, queue: Any) -> None:
    from tailrace.contracts import Experience, Segment
    from tailrace.trainer import TrainerConfig
    from tailrace.trainer.memory import read_shape, trainer_memory
    from tailrace.trainer.small import build_model
    from tailrace.trainer.worker import TrainerWorker

    def batch(size: int) -> list[Experience]:
        return [
            Experience(
                str(place),
                0,
                (1,),
                (Segment(0, tuple(t % 10 for t in range(size)), (-2.0,) * size),),
                reward=float(place),
            )
            for place in range(2)
        ]

    config = TrainerConfig(
        device="cpu",
        threads=1,
        loss=loss,
        micro_batch_tokens=tokens,
        shared_prompt_tokens=0,
        activation_checkpointing=checkpointing,  # type: ignore[arg-type]
    )
    with tempfile.TemporaryDirectory() as folder:
        tiny = build_model(Path(folder) / "tiny", vocab_size=16, hidden=16, layers=1, head_dim=8, mlp=16)
        with TrainerWorker(tiny, config) as worker:
            worker.step([batch(8)])
        made = multiprocessing.get_context("spawn").Process(target=_build, args=(f"{folder}/model", shape))
        made.start()
        made.join()
        before = resident()
        with TrainerWorker(f"{folder}/model", config) as worker:
            worker.step([batch(tokens - 1)])
            forget()
            worker.step([batch(tokens - 1)])
            peak = resident(peak=True) - before
        found = read_shape(f"{folder}/model")
        assert found is not None
        predicted = trainer_memory(found, config, ranks=1, longest=tokens)
    names = (*predicted.__slots__, "state", "peak")
    queue.put({name: getattr(predicted, name) for name in names} | {"measured": peak, "count": found.parameters})


def _build(directory: str, shape: dict[str, int]) -> None:
    from tailrace.trainer.small import build_model

    build_model(directory, kv_heads=shape["heads"], **shape)


def measure(sizes: int, tokens: int, loss: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Bytes by size: predicted parts, their peak, and measured."""
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(MIB), "MALLOC_TRIM_THRESHOLD_": str(MIB), "OMP_NUM_THREADS": "1"}
    context = multiprocessing.get_context("spawn")
    for name, (shape, checkpointing) in list(SIZES.items())[:sizes]:
        queue = context.Queue()
        process = context.Process(target=measured, args=(shape, checkpointing, tokens, loss, queue))
        process.start()
        yield name, queue.get(timeout=600)
        process.join(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of them, the smallest first")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--loss", default="dapo", help="the loss; ppo adds a critic")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    columns = ("state", "activations", "logits", "gathered", "reducing", "peak", "measured")
    print(f"{'MiB':32}" + "".join(f"{name:>12}" for name in columns) + f"{'error':>9}", flush=True)
    found = {}
    for name, row in measure(options.sizes, options.tokens, options.loss):
        found[name] = row
        figures = "".join(f"{row[column] / MIB:12.1f}" for column in columns)
        print(f"{name:32}{figures}{100 * (row['peak'] / row['measured'] - 1):8.1f}%", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
