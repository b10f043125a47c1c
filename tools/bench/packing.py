"""A trainer's step with its micro-batches packed into rows without padding, beside the same step padded; or with its layers
compiled, beside the same step without.

    uv run python tools/bench/packing.py [--compile] [--rounds N] [--sizes N] [--json FILE]

One process, one thread, the same batch: steps with and without alternate, after one of each that is not counted. The figure is
processor time with over without, a median of the rounds' own ratios, with the least and the most of them. Above 1, it is
slower. Response lengths are lognormal, as the quick start's are, or all alike. `padding` is the share of tokens in
the padded micro-batches that are padding, `batches` how many micro-batches there are, packed and padded. With `--compile` both
are packed, and `first` is what the first compiled step took, in seconds of processor time.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tailrace.contracts import Experience, Segment
from tailrace.trainer import TrainerConfig, TrainerWorker
from tailrace.trainer.batch import grpo_samples
from tailrace.trainer.layout import plan
from tailrace.trainer.small_model import build_model

VOCABULARY = 600
SIZES: dict[str, dict[str, int]] = {
    "0.2 million": {"hidden": 64, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 32, "mlp": 192},
    "3 million": {"hidden": 256, "layers": 4, "heads": 8, "kv_heads": 4, "head_dim": 32, "mlp": 768},
}
BATCHES: dict[str, tuple[int, int, float, float, int, int]] = {
    # prompts, samples of each, median of the lengths, their spread (of the logarithm), most, shared_prompt_tokens
    "quick start": (32, 8, 10.0, 0.6, 192, 384),
    "long tail": (16, 8, 60.0, 1.0, 1024, 384),
    "long tail, a row each": (16, 8, 60.0, 1.0, 1024, 0),
    "alike": (16, 8, 100.0, 0.05, 1024, 0),
}


def batch(prompts: int, samples: int, median: float, spread: float, most: int, seed: int = 0) -> list[Experience]:
    draw, made = random.Random(seed), []
    for group in range(prompts):
        prompt = tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(15, 30)))
        for sample in range(samples):
            length = max(1, min(most, round(draw.lognormvariate(math.log(median), spread))))
            tokens = tuple(draw.randrange(VOCABULARY) for _ in range(length))
            segments = (Segment(0, tokens, (-math.log(VOCABULARY),) * length),)
            made.append(Experience(f"{group}.{sample}", group, prompt, segments, reward=float(sample % 2)))
    return made


def measure(rounds: int, sizes: int, compiles: bool) -> Iterator[dict[str, Any]]:
    base = TrainerConfig(lr=1e-4, device="cpu", threads=1)
    with tempfile.TemporaryDirectory() as folder:
        for size, shape in list(SIZES.items())[-sizes:]:
            model = build_model(Path(folder) / size, vocab_size=VOCABULARY, max_positions=2048, **shape)
            for kind, (*numbers, shared) in BATCHES.items():
                made = batch(*numbers)  # type: ignore[arg-type]
                config = dataclasses.replace(base, shared_prompt_tokens=shared)
                key = "compile" if compiles else "packing"
                with ExitStack() as stack:
                    workers = [
                        stack.enter_context(TrainerWorker(model, dataclasses.replace(config, **{key: taken})))  # type: ignore[arg-type]
                        for taken in (True, False)
                    ]
                    times: list[list[float]] = [[], []]
                    for number in range(rounds + 1):
                        for which in (0, 1) if number % 2 else (1, 0):
                            begun = time.process_time()
                            metrics = workers[which].step([made])
                            times[which].append(time.process_time() - begun)
                            if compiles and which == 0 and not metrics["compiled"]:
                                raise SystemExit(
                                    f"{size}, {kind}: the trainer compiled nothing; is there a C++ compiler?"
                                )
                ratios = [taken / without for taken, without in zip(*(each[1:] for each in times), strict=True)]
                samples = grpo_samples([made], config)[0]
                settings = {"ranks": 1, "token_budget": config.micro_batch_tokens, "shared_prompt_tokens": shared}
                padded, packed = (plan(samples, packed=packs, **settings)[0] for packs in (False, True))  # type: ignore[arg-type]
                tokens = sum(row.length for rows in padded for row in rows)
                taken = sum(len(rows) * max(row.length for row in rows) for rows in padded)
                yield {
                    "size": size, "batch": kind, "tokens": tokens, "padding": 1 - tokens / taken,
                    "batches": [len(packed), len(padded)], "ratio": statistics.median(ratios),
                    "least": min(ratios), "most": max(ratios), "seconds": statistics.median(times[1][1:]),
                    "first": times[0][0],
                }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile", action="store_true", help="compare compiled layers, not packing")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", type=int, default=len(SIZES), help="how many of them, the largest last")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    title = "with/without" if options.compile else "packed/padded"
    print(
        f"{'parameters':14}{'batch':24}{'tokens':>8}{'padding':>9}{'batches':>9}{title:>15}{'least':>7}{'most':>7}{'first':>8}"
    )
    rows = []
    for row in measure(options.rounds, options.sizes, options.compile):
        rows.append(row)
        batches = "{} / {}".format(*row["batches"])
        print(
            f"{row['size']:14}{row['batch']:24}{row['tokens']:8}{row['padding']:9.1%}{batches:>9}"
            f"{row['ratio']:15.3f}{row['least']:7.2f}{row['most']:7.2f}{row['first']:8.1f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
