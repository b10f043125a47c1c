"""Weights between two datacenters over a slow link: bytes for each version, what a transfer costs a step, a cut of the link.

    sudo .venv/bin/python tools/bench/sites.py [--mib N] [--repeats N] [--steps N] [--step-s S] [--run RUN]... [--quick] [--ray]

The datacenters are network namespaces, and the link between them is limited in both directions and counted by the kernel. It
needs Linux, root, `ip` and `tc`. Its parts are in `site_link/`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from site_link import crossing, pipeline, ray_groups, versions

COUNTS = (1, 2, 4)
SMALL_LR, PUBLISHED = 1e-6, "bfloat16"
QUICK_START_LR = 7e-4  # of the quick starts


def words(runs: list[Path], hidden: int, layers: int) -> list[versions.Changed]:
    """How many words change, of weights trained here and of runs."""
    found = []
    for lr, dtype in ((SMALL_LR, PUBLISHED), (QUICK_START_LR, "float32")):
        what = f"AdamW at {lr:g}, published in {dtype}"
        found.append(
            versions.compared(what, versions.trained(lr, dtype, hidden=hidden, layers=layers), _words_in(dtype))
        )
    for run in runs:
        for dtype in ("float32", PUBLISHED):
            what = f"{run.name} at {versions.learning_rate(run):g}, in {dtype}"
            found.append(versions.compared(what, versions.of_run(run, dtype), _words_in(dtype)))
    print("Words of 16 bits that change from one version to the next")
    print(f"  {'weights':<56} {'words':>8} {'lowest-highest':>18} {'values':>8} {'encoded':>8}")
    for row in found:
        spread = f"{row.lowest:.2%}-{row.highest:.2%}"
        print(f"  {row.what:<56} {row.words:>8.2%} {spread:>18} {row.values:>8.2%} {row.encoded:>8.2%}")
    return found


def bytes_over_the_link(changed: list[versions.Changed], nbytes: int, repeats: int) -> list[crossing.Crossing]:
    """What crosses for each version."""
    small, quick = changed[:2]
    kinds = [("bfloat16 at 1e-6", small.words, small.far), ("nearly all changed", 1.0, quick.far)]
    found = crossing.crossings(kinds, COUNTS, nbytes, repeats)
    print(f"\nBytes over the link for a version of {nbytes / 2**20:.0f} MiB (limit {crossing.LIMIT} encoded copies)")
    print(
        f"  {'versions':<22} {'replicas':>8} {'encoded MiB':>12} {'link MiB':>10} {'copies':>8} {'each pulls, MiB':>16}"
    )
    for row in found:
        mib = [count / 2**20 for count in (row.encoded_bytes, row.link_bytes, row.naive_bytes)]
        print(
            f"  {row.weights:<22} {row.replicas:>8} {mib[0]:>12.3f} {mib[1]:>10.3f} {row.copies:>8.3f} {mib[2]:>16.1f}"
            f"{'' if row.exact else '  NOT EXACT'}"
        )
    return found


def pipelines(step_s: float, nbytes: int, steps: int) -> tuple[list[pipeline.Pipelined], dict[str, float]]:
    """What a transfer costs a step, with and without a barrier: each pipeline, and by what it is longer than a free one."""
    names = ("free", "barrier", "batches", "streamed")
    found = [pipeline.pipelined(name, step_s=step_s, nbytes=nbytes, steps=steps) for name in names]
    costs = {row.pipeline: row.iteration_s / found[0].iteration_s - 1.0 for row in found}
    print(f"\nSteps of {step_s:g} s with a transfer of {found[-1].transfer_s:.3f} s each, generated beyond the link")
    print(f"  {'pipeline':<12} {'iteration s':>12} {'lowest-highest':>16} {'cost':>8}")
    for row in found:
        wrong = "" if row.exact and row.one_step else "  WRONG"
        spread = f"{row.lowest_s:.3f}-{row.highest_s:.3f}"
        print(f"  {row.pipeline:<12} {row.iteration_s:>12.3f} {spread:>16} {costs[row.pipeline]:>8.1%}{wrong}")
    return found, costs


def survived(step_s: float, nbytes: int, steps: int, cut_s: float) -> pipeline.Survived:
    """What a cut of the link costs."""
    found = pipeline.cut(step_s=step_s, nbytes=nbytes, steps=steps, cut_s=cut_s)
    exact = "every version exact" if found.exact else "NOT EXACT"
    print(
        f"\nA cut of {found.cut_s:.0f} s in {found.steps} steps of {step_s:g} s: {found.lost} parts lost, "
        f"{found.twice} trained on twice, staleness at most {found.stalest}, {exact};\n"
        f"training stood still for {found.stood_still_s:.1f} s"
    )
    return found


def real_runs(steps: int) -> list[ray_groups.Run]:
    """The quick start over two groups of Ray nodes, with and without a cut."""
    found = []
    for cut_s in (0.0, pipeline.CUT_S):
        with tempfile.TemporaryDirectory(prefix="sites-run-") as folder:
            row = ray_groups.run(rate=20e6, replicas=2, steps=steps, cut_s=cut_s, folder=Path(folder) / "run")
        found.append(row)
        print(
            f"{row.steps} steps over two groups of Ray nodes, cut for {row.cut_s:.0f} s: {row.lost} trajectories lost, "
            f"staleness at most {row.staleness}, {row.beyond[0]} of {row.beyond[1]} replicas came up beyond the link, "
            f"{row.link_bytes / 2**20:.1f} MiB crossed; steps of {row.step_s:.1f} s, {row.exposed_s:.2f} s exposed in all; "
            f"{row.wall_s:.0f} s"
        )
    return found


def _words_in(dtype: str) -> int:
    return 2 if dtype == "float32" else 1


def main() -> None:
    parser = argparse.ArgumentParser(description="Weights between two datacenters over a slow link.")
    parser.add_argument("--mib", type=int, help="size of a version; 64")
    parser.add_argument("--repeats", type=int, help="versions that are counted; 5")
    parser.add_argument("--steps", type=int, help="steps of a pipeline; 15")
    parser.add_argument("--step-s", type=float, help="seconds of a step; 2")
    parser.add_argument("--quick", action="store_true", help="small versions, few steps, a short cut")
    parser.add_argument(
        "--run", type=Path, action="append", default=[], help="a run whose checkpoints are compared too"
    )
    parser.add_argument("--ray", action="store_true", help="only: a real run over two groups of Ray nodes, minutes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    mib, repeats = options.mib or (16 if options.quick else 64), options.repeats or (2 if options.quick else 5)
    steps, step_s = options.steps or (8 if options.quick else 15), options.step_s or (1.0 if options.quick else 2.0)
    report: dict[str, Any] = {"benchmark": "sites", "load_before": os.getloadavg()[0], "cores": os.cpu_count()}
    if options.ray:
        report["runs"] = [asdict(row) for row in real_runs(options.steps or 6)]
        written(report, options.json)
        return
    changed = words(options.run, *((128, 2) if options.quick else (256, 4)))
    crossed = bytes_over_the_link(changed, mib * 2**20, repeats)
    timed, costs = pipelines(step_s, 8 * 2**20, steps)
    after_cut = survived(step_s, 8 * 2**20, steps, 5.0 if options.quick else pipeline.CUT_S)
    report |= {
        "kernel": platform.release(),
        "words": [asdict(row) for row in changed],
        "crossings": [asdict(row) for row in crossed],
        "copies": max(row.copies for row in crossed),
        "pipelines": [asdict(row) for row in timed],
        "cost": costs["streamed"],
        "naive_cost": costs["barrier"],
        "cut": asdict(after_cut),
    }
    written(report, options.json)


def written(report: dict[str, Any], path: Path | None) -> None:
    report["load_after"] = os.getloadavg()[0]
    print(f"\nload {report['load_before']:.1f} before, {report['load_after']:.1f} after, {report['cores']} cores")
    if path is not None:
        path.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
