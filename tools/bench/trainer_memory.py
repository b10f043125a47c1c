"""Memory that a rank of the trainer needs: predicted by arithmetic (`tailrace.trainer.memory`) beside measured on a CPU.

    uv run python tools/bench/trainer_memory.py [--backend NAME [--zero-stage N] [--tensor-parallel N]] [--ranks N]
        [--padded] [--sizes N] [--tokens T] [--loss ppo] [--dtype bfloat16] [--json FILE]

Each rank is a process that loads a model and does two optimizer steps of two micro-batches, each a response of T tokens.
Measured is how much its resident memory grew beyond what it was before the model was loaded but after a step on a tiny one:

kept     between the two steps: parameters and moments; with ZeRO 3 the gradients' buffer too, which stays
peak     at most in the second step, with gradients, activations and what is summed over ranks

The rank that grew most counts. glibc gives back what is freed, as it does not by default for blocks below 32 MiB. Limit: 10 %.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
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
COLUMNS = ("parameters", "gradients", "optimizer", "activations", "logits", "gathered", "reducing")


def rank(number: int, folder: str, options: argparse.Namespace, config: Any, queue: Any) -> None:
    """Measure one rank, in bytes: what it keeps between steps, and its peak."""
    from tailrace.contracts import Experience, Segment
    from tailrace.trainer.backend import build_backend

    def open_rank(model: str) -> Any:
        meeting = f"file://{folder}/meet-{model}" if options.ranks > 1 else None
        return closing(
            build_backend(
                options.backend,
                f"{folder}/{model}",
                config,
                rank=number,
                world_size=options.ranks,
                rendezvous=meeting,
            )
        )

    def batch(size: int) -> list[Experience]:
        return [
            Experience(
                str(place),
                0,
                (1,),
                (Segment(0, tuple(t % 10 for t in range(size)), (-2.0,) * size),),
                reward=float(place % 2),
            )
            for place in range(2 * options.ranks // config.tensor_parallel)
        ]

    with open_rank("tiny") as worker:
        worker.step([batch(8)])
    gc.collect()
    before = resident()
    with open_rank("model") as worker:
        worker.step([batch(options.tokens - 1)])
        gc.collect()
        kept = resident() - before
        forget()
        worker.step([batch(options.tokens - 1)])
        queue.put((kept, resident(peak=True) - before))


def measure(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, int]]]:
    """Bytes by size: predicted parts, what they are between steps and at most, and both measured."""
    from tailrace.trainer import TrainerConfig
    from tailrace.trainer.memory import read_shape, trainer_memory
    from tailrace.trainer.small_model import build_model

    # what is freed goes back, and no thread has a heap of its own
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": str(1 << 17), "MALLOC_TRIM_THRESHOLD_": str(MIB), "MALLOC_ARENA_MAX": "1"}
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    for name, (sizes, checkpointing) in list(SIZES.items())[: options.sizes]:
        config = TrainerConfig(
            device="cpu",
            threads=1,
            loss=options.loss,
            dtype=options.dtype,
            micro_batch_tokens=options.tokens,
            packing=not options.padded,
            zero_stage=options.zero_stage,
            tensor_parallel=options.tensor_parallel,
            shared_prompt_tokens=0,
            activation_checkpointing=checkpointing,  # type: ignore[arg-type]
        )
        with tempfile.TemporaryDirectory() as folder:
            build_model(f"{folder}/tiny", vocab_size=16, hidden=16, layers=1, heads=2, kv_heads=2, head_dim=8, mlp=16)
            build_model(f"{folder}/model", kv_heads=sizes["heads"], **sizes)
            shape = read_shape(f"{folder}/model")
            assert shape is not None
            queue = context.Queue()
            ranks = [
                context.Process(target=rank, args=(number, folder, options, config, queue))
                for number in range(options.ranks)
            ]
            for process in ranks:
                process.start()
            found = [queue.get(timeout=600) for _ in ranks]
            for process in ranks:
                process.join(60)
        predicted = trainer_memory(shape, config, ranks=options.ranks, longest=options.tokens, backend=options.backend)
        kept = predicted.parameters + predicted.optimizer + (predicted.gradients if options.zero_stage == 3 else 0)
        row = asdict(predicted) | {"kept": kept, "peak": predicted.peak}
        row |= {"measured_kept": max(kept for kept, _ in found), "measured_peak": max(peak for _, peak in found)}
        yield name, row | {"count": shape.parameters}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("fsdp2", "deepspeed", "megatron"), default="fsdp2")
    parser.add_argument("--zero-stage", type=int, choices=(1, 2, 3), help="of deepspeed")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="of megatron")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--padded", action="store_true", help="one padded row for each response, not packed ones")
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of them, the smallest first")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--loss", default="dapo", help="the loss; ppo adds a critic")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{'MiB':32}" + "".join(f"{name:>12}" for name in COLUMNS), end="")
    print("".join(f"{name:>8}{'measured':>10}{'error':>8}" for name in ("kept", "peak")), flush=True)
    found = {}
    for name, row in measure(options):
        found[name] = row
        line = f"{name:32}" + "".join(f"{row[column] / MIB:12.1f}" for column in COLUMNS)
        for what in ("kept", "peak"):
            is_, told = row[f"measured_{what}"], row[what]
            line += f"{told / MIB:8.0f}{is_ / MIB:10.0f}{100 * (told / is_ - 1):7.1f}%"
        print(line, flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
