"""A judge with half of its layers in host memory, pipelined and not, beside the resident one; interleaved, in one process.

    uv run python tools/bench/judge.py [--tokens 32 128 512] [--repeats N] [--device cpu|cuda] [--json FILE]

The model is a Qwen3 of random weights (`--hidden`, `--layers`, `--mlp`) or a directory (`--model`). For each input length: the
median seconds of a pass and its quartiles; the peak of device memory (weights that were counted; on CUDA also what torch says
was allocated) beside the budget; whether the scores are the resident model's, bit for bit. `modelled` is the cost model's time
of the pipelined pass, given the resident time and the time of copying a layer alone, which is the limit beside which
streaming stands. `--threads` leaves cores to the copying thread on a CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tailrace.reward.judge import Judge, JudgeConfig, JudgeItem
from tailrace.reward.judge.memory import pass_s, residency_order
from tailrace.trainer.small_model import build_model
from tailrace.trainer.tokenizer import train_tokenizer

VARIANTS = ("resident", "pipelined", "not pipelined")
AMPLE = 1 << 50  # bytes


@dataclass
class Measured:
    judge: Judge
    budget_bytes: int | None
    peak_device_bytes: int
    scores: list[Any]
    seconds: list[float] = field(default_factory=list)


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def small_model(directory: Path, options: argparse.Namespace) -> Path:
    words = train_tokenizer(["is it right ? yes no"], directory, vocab_size=100, words=True)
    return build_model(
        directory,
        vocab_size=words,
        hidden=options.hidden,
        layers=options.layers,
        heads=options.hidden // 128,
        kv_heads=max(1, options.hidden // 512),
        head_dim=128,
        mlp=options.mlp,
        max_positions=65_536,
    )


def items_of(judge: Judge, tokens: int, count: int) -> list[JudgeItem]:
    """Items of exactly so many tokens each, template included."""
    words = tokens - len(judge.tokens(JudgeItem("it")))
    found = JudgeItem("it" + " it" * words)
    if len(judge.tokens(found)) != tokens:
        raise SystemExit(f"{tokens} tokens: the tokenizer of --model does not read ' it' as one token")
    return [found] * count


def prepared(variant: str, model: Path, tokens: int, options: argparse.Namespace) -> Measured:
    """A judge that has scored once, alone; its peak of device memory."""
    settings = {
        "device": options.device,
        "dtype": options.dtype,
        "max_tokens": tokens,
        "batch_items": options.items,
        "batch_tokens": options.items * tokens,
        "pipelined": variant == "pipelined",
    }
    budget = None
    if variant != "resident":
        with Judge(JudgeConfig(str(model), "{response} right ?", memory_bytes=AMPLE, **settings)) as measuring:
            budget = measuring.budget_bytes(options.layers // 2, options.items, tokens)
        del measuring
    before = 0
    if options.device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    judge = Judge(JudgeConfig(str(model), "{response} right ?", memory_bytes=budget, **settings))
    scores = judge.score(items_of(judge, tokens, options.items))
    peak = judge.peak_weight_bytes
    if options.device.startswith("cuda"):
        peak = torch.cuda.max_memory_allocated() - before
    if budget is not None and (peak > budget or judge.resident_layers != options.layers // 2):
        raise SystemExit(f"{variant}: {judge.resident_layers} layers and {peak:,} bytes, the budget was {budget:,}")
    return Measured(judge, budget, peak, scores)


def copy_of_a_layer_s(layer_bytes: int, device: str, repeats: int) -> float:
    """Seconds of copying as many bytes as a layer has from host memory to the device, alone."""
    source = torch.zeros(layer_bytes, dtype=torch.uint8, pin_memory=device.startswith("cuda"))
    target = torch.empty(layer_bytes, dtype=torch.uint8, device=device)
    seconds = []
    for _ in range(repeats + 1):
        synchronize(device)
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        synchronize(device)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])


def measure(model: Path, tokens: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    sides = {variant: prepared(variant, model, tokens, options) for variant in VARIANTS}
    items = items_of(sides["resident"].judge, tokens, options.items)
    for _ in range(options.repeats):
        for side in sides.values():
            synchronize(options.device)
            started = time.perf_counter()
            side.judge.score(items)
            side.seconds.append(time.perf_counter() - started)
    resident = statistics.median(sides["resident"].seconds)
    half = options.layers // 2
    sizes = sides["pipelined"].judge
    layer_bytes = sizes.budget_bytes(half + 1, 1, 1) - sizes.budget_bytes(half, 1, 1)
    copy_s = copy_of_a_layer_s(layer_bytes, options.device, options.repeats)
    streamed = set(residency_order(options.layers)[half:])
    copies = [copy_s if layer in streamed else None for layer in range(options.layers)]
    rows = []
    for variant, side in sides.items():
        low, middle, high = statistics.quantiles(side.seconds, n=4)
        modelled = pass_s([resident / options.layers] * options.layers, copies, pipelined=variant == "pipelined")
        rows.append(
            {
                "tokens": tokens,
                "variant": variant,
                "median_s": middle,
                "quartiles_s": [low, high],
                "slowdown": middle / resident,
                "modelled_s": resident if variant == "resident" else modelled,
                "peak_device_bytes": side.peak_device_bytes,
                "budget_bytes": side.budget_bytes,
                "same_scores": side.scores == sides["resident"].scores,
                "copy_of_a_layer_s": copy_s,
                "layer_bytes": layer_bytes,
            }
        )
        side.judge.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="A judge with half of its layers in host memory.")
    parser.add_argument("--tokens", type=int, nargs="+", default=[32, 128, 512])
    parser.add_argument("--items", type=int, default=1, help="items of a pass")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--mlp", type=int, default=3072)
    parser.add_argument("--model", type=Path, help="a model directory instead; --layers must be its number of layers")
    parser.add_argument("--threads", type=int, default=1, help="threads of computing on a CPU")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    print(
        f"{'tokens':>7} {'variant':<14} {'median s':>9} {'quartiles':>17} {'slowdown':>9} {'modelled':>9} {'peak MiB':>9} same"
    )
    with tempfile.TemporaryDirectory() as work:
        model = options.model or small_model(Path(work) / "model", options)
        for tokens in options.tokens:
            for row in measure(model, tokens, options):
                rows.append(row)
                quartiles = "{:.4f} to {:.4f}".format(*row["quartiles_s"])
                print(
                    f"{tokens:7} {row['variant']:<14} {row['median_s']:9.4f} {quartiles:>17} {row['slowdown']:9.2f} "
                    f"{row['modelled_s']:9.4f} {row['peak_device_bytes'] / 2**20:9.1f} {row['same_scores']}",
                    flush=True,
                )
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
