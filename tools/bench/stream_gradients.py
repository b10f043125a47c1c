"""Streamed gradients against those of the whole batch: relative difference before clipping, and of weights after.

    whole       one process, one step on the batch
    streamed    the groups in random order, a few at a time, by one cell or by two cells (real processes) with uneven shares;
                then one optimizer step with what is left, which may be nothing

Differences are 2-norms. The rounding of float32 is the limit: the same in float64 shows that nothing else differs. Beside it
stands the plain average of two cells with uneven shares, each scaled by itself.

    uv run python tools/bench/stream_gradients.py [--json FILE] [--seeds N]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import random
import tempfile
from pathlib import Path
from typing import Any

import torch

from tailrace.contracts import Experience
from tailrace.trainer import TrainerConfig
from tailrace.trainer.small_model import build_model
from tailrace.trainer.testing import make_experiences
from tailrace.trainer.worker import TrainerWorker

VOCABULARY, GROUPS, SAMPLES = 97, 12, 4
DTYPES = {"fp32": "float32", "fp64": "float64"}
LIMITS = {"fp32": 1e-6, "fp64": 1e-12}
SHARES = {
    "one cell": (9,),
    "two cells": (5, 4),
    "two cells, uneven": (8, 1),
    "two cells, one idle": (9, 0),
    "no rest": (7, 5),
}
SETTINGS = TrainerConfig(lr=1e-2, device="cpu", grad_clip_norm=0.5, micro_batch_tokens=256, threads=1, timeout_s=120)


def groups_of(seed: int) -> list[list[Experience]]:
    """Groups of four, the longest with fourteen times the tokens of the shortest."""
    found = []
    for group in range(GROUPS):
        most = round(3 * 14 ** (group / (GROUPS - 1)))
        made = make_experiences(1, SAMPLES, vocab_size=VOCABULARY, seed=seed * GROUPS + group, max_response=most)
        found.append([dataclasses.replace(each, group=group, trajectory=f"{group}.{i}") for i, each in enumerate(made)])
    return found


def together(groups: list[list[Experience]]) -> list[Experience]:
    return [experience for group in groups for experience in group]


def train(
    rank: int, ranks: int, model: str, meet: str | None, config: TrainerConfig, seed: int, shares: Any, out: str
) -> None:
    """One batch on a rank that is a cell of its own; the first one writes gradient and weights."""
    groups = groups_of(seed)
    worker = TrainerWorker(model, config, rank=rank, world_size=ranks, rendezvous=meet)
    seen = {}
    apply = worker._model.apply_gradients

    def spy(lr: float) -> float:
        seen.update(
            {name: parameter.grad.full_tensor().clone() for name, parameter in worker._model.parameters.items()}
        )
        return apply(lr)

    worker._model.apply_gradients = spy
    if shares is None:
        worker.step([together(groups)])
    else:
        draw = random.Random(seed)
        order = draw.sample(groups, len(groups))
        mine = order[sum(shares[:rank]) : sum(shares[: rank + 1])]
        while mine:
            size = draw.randint(1, 3)
            worker.accumulate(together(mine[:size]))
            mine = mine[size:]
        worker.apply(together(order[sum(shares) :]))
    weights = {name: tensor.clone() for name, tensor in worker._model.whole_parameters()}
    if rank == 0:
        torch.save((seen, weights), out)
    worker.close()


def run(
    work: Path, model: Path, config: TrainerConfig, seed: int, shares: tuple[int, ...] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradient before clipping and weights after the step, flat, in float64."""
    ranks = len(shares or (0,))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tailrace.trainer.worker", "transformers.models.qwen3.modeling_qwen3"])
    with tempfile.TemporaryDirectory(dir=work) as own:
        meet = f"file://{own}/meet" if ranks > 1 else None
        settings = dataclasses.replace(config, cells=ranks)
        common = (ranks, str(model), meet, settings, seed, shares, f"{own}/out.pt")
        processes = [context.Process(target=train, args=(rank, *common)) for rank in range(ranks)]
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(240)
            if [process.exitcode for process in processes] != [0] * ranks:
                raise RuntimeError(f"found exit codes {[process.exitcode for process in processes]}, expected zeros")
        finally:
            for process in processes:
                process.kill()
        found = torch.load(f"{own}/out.pt")
    gradient, weights = (torch.cat([each[name].double().flatten() for name in sorted(each)]) for each in found)
    return gradient, weights


def mean_of_means(model: Path, config: TrainerConfig, seed: int, whole: torch.Tensor) -> float:
    """How far the average of two cells' mean gradients is from the batch's, where one has ten of twelve groups."""
    groups = groups_of(seed)
    total = torch.zeros_like(whole)
    with TrainerWorker(model, dataclasses.replace(config, lr=0.0)) as worker:
        apply = worker._model.apply_gradients

        def spy(lr: float) -> float:
            parameters = worker._model.parameters
            total.add_(
                torch.cat([parameters[name].grad.full_tensor().double().flatten() for name in sorted(parameters)])
            )
            return apply(lr)

        worker._model.apply_gradients = spy
        for share in (groups[:10], groups[10:]):
            worker.step([together(share)])
    return far(total / 2, whole)


def far(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).norm() / other.norm())


def compare(seeds: int) -> list[dict[str, Any]]:
    """A row for each normalisation and each way to share the batch: the largest differences over the seeds."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        model = build_model(
            work / "model", vocab_size=VOCABULARY, hidden=32, layers=2, head_dim=8, mlp=64, max_positions=128
        )
        for normalisation in ("token", "sequence"):
            found = {name: dict[str, float]() for name in SHARES}
            worse = 0.0
            for seed in range(seeds):
                for figure, dtype in DTYPES.items():
                    config = dataclasses.replace(SETTINGS, normalisation=normalisation, dtype=dtype)
                    gradient, weights = run(work, model, config, seed, None)
                    if dtype == "float64":
                        worse = max(worse, mean_of_means(model, config, seed, gradient))
                    for name, shares in SHARES.items():
                        streamed, after = run(work, model, config, seed, shares)
                        for what, value in (
                            (f"rel_l2_{figure}", far(streamed, gradient)),
                            (f"weights_{figure}", far(after, weights)),
                        ):
                            found[name][what] = max(value, found[name].get(what, 0.0))
            rows += [{"normalisation": normalisation, "case": name, **values} for name, values in found.items()]
            rows.append({"normalisation": normalisation, "case": "average of two cells", "rel_l2_fp64": worse})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--seeds", type=int, default=2, help="batches and orders for each case")
    options = parser.parse_args()
    rows = compare(options.seeds)
    print(f"{'':32}{'gradient fp32':>15}{'fp64':>10}{'weights fp32':>15}{'fp64':>10}")
    for row in rows:
        figures = [row.get(name) for name in ("rel_l2_fp32", "rel_l2_fp64", "weights_fp32", "weights_fp64")]
        cells = ["" if value is None else f"{value:.1e}" for value in figures]
        print(f"{row['normalisation']:10}{row['case']:22}{cells[0]:>15}{cells[1]:>10}{cells[2]:>15}{cells[3]:>10}")
    streamed = [row for row in rows if row["case"] in SHARES]
    largest = {f"rel_l2_{name}": max(row[f"rel_l2_{name}"] for row in streamed) for name in DTYPES}
    held = all(largest[f"rel_l2_{name}"] <= limit for name, limit in LIMITS.items())
    print(f"largest: {largest}; limits {LIMITS}: {'kept' if held else 'NOT KEPT'}")
    if options.json:
        options.json.write_text(json.dumps({**largest, "limits": LIMITS, "cases": rows}, indent=1) + "\n")
    raise SystemExit(0 if held else 1)


if __name__ == "__main__":
    main()
