"""StreamRL simulated: what each part gains by the ratio of generation to training, and what a ranker's recall is worth.

    uv run python tools/bench/streamrl_gains.py [--models MODEL ...] [--quick] [--jobs N] [--json FILE]

The points are those of `tailrace reproduce streamrl` with responses of up to 20,000 tokens. The ratio is that of the seconds
that generation and training of a batch take in turn on all devices; it is moved by the trainer's share of peak arithmetic, from
10 to 80 %. For each the devices are shared anew (Algorithm 1). Throughput is over that of the colocated baseline:

    skew       colocated, the longest dispatched by themselves
    sync       StreamRL-Sync
    one-step   a batch ahead, with a barrier and whole batches (the paper's strawman)
    async      StreamRL-Async
    free       without any barrier, on the devices of StreamRL-Async

The second table is the share of an oracle's gain in generation time over dispatch at random that is left at a recall of the
longest 20 %: the paper's three rankers, chance, and others.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.fleetsim.noisy_oracle import TABLE_4, expected_recalls, noise_of
from tailrace.fleetsim.reproduce import Point
from tailrace.fleetsim.reproduce.paper import Lab
from tailrace.streamrl.paper.measures import ALL, kept, with_recalls
from tailrace.streamrl.paper.points import GROUPS, MODELS, PARAMETERS, asynchronous, colocated, free, synchronous, times

MFUS = (0.1, 0.2, 0.4, 0.8)
LENGTH = "20K"
CHANCE = 0.2
RECALLS = (CHANCE, 0.35, 0.5, 0.65, 0.95)
OURS = 0.58
"""`auto` on procedural tasks (docs/length-prediction.md, held-out prompts), where half of a prompt's own samples find 0.56."""


def main() -> None:
    """Simulate and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--jobs", type=int, default=1, help="simulations at once")
    parser.add_argument("--quick", action="store_true", help="a third of the steps")
    parser.add_argument("--json", type=Path, help="write both tables")
    options = parser.parse_args()
    lab = Lab(processes=options.jobs)
    tables = ratios(options.models, quick=options.quick), rankers(options.models, quick=options.quick)
    lab.simulate([point for rows in tables for row in rows for point in row.points])
    gains, recalls = ([row.of(lab) for row in rows] for rows in tables)
    gains.sort(key=lambda row: row["generation_over_training"])
    recalls.sort(key=lambda row: -row["recall20"])
    print(f"{'':5} {'generation':>10} {'skew':>6} {'sync':>6} {'one-step':>8} {'async':>6} {'free':>6}")
    for row in gains:
        figures = " ".join(f"{row[name]:{width}.2f}" for name, width in zip(SYSTEMS, (6, 6, 8, 6, 6), strict=True))
        print(f"{row['model']:5} {row['generation_over_training']:10.2f} {figures}")
    print(f"\n{'ranker':14} {'recall':>6} " + " ".join(f"{model:>6}" for model in options.models))
    for row in recalls:
        print(
            f"{row['ranker']:14} {row['recall20']:6.2f} " + " ".join(f"{share:6.2f}" for share in row["kept"].values())
        )
    if options.json is not None:
        options.json.write_text(json.dumps({"gains": gains, "recalls": recalls}, indent=1) + "\n")


def _skewed(model: str, *, quick: bool) -> Point:
    return colocated(model, LENGTH, quick=quick, routing="skew-aware")


def _one_step(model: str, *, quick: bool) -> Point:
    ahead = asynchronous(model, LENGTH, quick=quick)
    known = dict(ahead.settings)
    generate, size = known["fleet.rollout.gpus"], known["fleet.rollout.tensor_parallel"]
    assert isinstance(generate, int)
    assert isinstance(size, int)
    even = -(-GROUPS * size // generate)
    return ahead.over(
        pipeline__training="full-batch", pipeline__routing="round-robin", pipeline__prompts_per_replica=even
    )


SYSTEMS: dict[str, Callable[..., Point]] = {
    "skew": _skewed,
    "sync": lambda model, *, quick: synchronous(model, LENGTH, quick=quick),
    "one-step": _one_step,
    "async": lambda model, *, quick: asynchronous(model, LENGTH, quick=quick),
    "free": lambda model, *, quick: free(model, LENGTH, quick=quick),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: the simulations that it needs, and what is made of them."""

    points: Sequence[Point]
    of: Callable[[Lab], dict[str, Any]]


def ratios(models: Sequence[str], *, quick: bool) -> list[Row]:
    """Throughput over the baseline's, by model and by the trainer's share of peak arithmetic."""
    return [_ratio(model, mfu, quick=quick) for model in models for mfu in MFUS]


def _ratio(model: str, mfu: float, *, quick: bool) -> Row:
    with PARAMETERS.trial({"train.mfu": mfu}):
        base = colocated(model, LENGTH, quick=quick)
        points = {name: system(model, quick=quick) for name, system in SYSTEMS.items()}
        stages, gpus = times(base), MODELS[model].gpus
        ratio = stages.generation(gpus).seconds / stages.train_s(gpus)

    def of(lab: Lab) -> dict[str, Any]:
        over = {name: lab[base].result.step_s / lab[point].result.step_s for name, point in points.items()}
        return {"model": model, "mfu": mfu, "generation_over_training": ratio, **over}

    return Row([base, *points.values()], of)


def rankers(models: Sequence[str], *, quick: bool) -> list[Row]:
    """The share of an oracle's gain that is left, by model, for each ranker."""
    random = {model: colocated(model, LENGTH, quick=quick) for model in models}
    skewed = {model: _skewed(model, quick=quick) for model in models}
    oracle = {model: with_recalls(point, ALL) for model, point in skewed.items()}
    known = [(name, dict(recalls)) for name, recalls in {"oracle": ALL, **TABLE_4}.items()]
    known.append(("ours", _of_one(OURS)))
    known += [("chance" if recall == CHANCE else "", _of_one(recall)) for recall in RECALLS]

    def row(name: str, recalls: dict[float, float]) -> Row:
        ranked = {model: with_recalls(point, recalls) for model, point in skewed.items()}
        return Row(
            [*random.values(), *oracle.values(), *ranked.values()],
            lambda lab: {"ranker": name, "recall20": recalls[0.2], "kept": kept(lab, random, ranked, oracle)},
        )

    return [row(name, recalls) for name, recalls in known]


def _of_one(recall20: float) -> dict[float, float]:
    """The recalls of a ranker whose errors are alike for all lengths."""
    return {0.2: recall20, **expected_recalls(noise_of({0.2: recall20}), (0.1, 0.05))}


if __name__ == "__main__":
    main()
