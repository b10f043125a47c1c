"""What a checkpoint costs a trainer of one rank and of several, and the throughput of a run with a fence.

    uv run python tools/bench/checkpoint.py [--device cpu|cuda] [--ranks 1 2 4] [--hidden H] [--layers L] [--repeats N]
                                            [--runs PAIRS] [--simulated] [--json FILE]

Four kinds of save of the same trainer take turns, and each is durable before the next begins: one plain copy of the state
(weights and both moments) into host memory that was touched before, pinned if the state is on a GPU; a checkpoint with full
state; one of weights alone; and torch's `torch.distributed.checkpoint.async_save` (DCP) of the same tensors. Then the full one
is loaded, and DCP's. Ranks are processes on this machine, over gloo; of all ranks the slowest counts. On a CPU more ranks than
cores share them, so compare the kinds with each other, not the numbers of ranks.

    blocking_s, durable_s   until the save returns; until it is complete and synced (DCP syncs its files too)
    over_copy               blocking seconds over those of the plain copy, which is as large for each kind but weights
    bytes                   of all files
    copies                  most host memory that the first save takes, over the bytes of the state (RSS, sampled)
    read_over_share         bytes that the rank with the most reads at a restart, over its share of the state (/proc/self/io)

The aim is 1.3 for `over_copy` and 1.1 for `read_over_share`.

With `--runs`, pairs of runs of Laminar's quick start follow, with `publish.fence` and without, in turns; the aim is a ratio of
0.97 of their trained tokens per second. With `--simulated`, the same pairs of RobustRL's three workloads in its three modes,
without a fault, where a checkpoint is on disk after 10 s.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shard_memory import forget, resident

VOCAB = 512
KINDS = ("copy", "full", "weights", "dcp")
_DEADLINE_S = 1800.0


def prepared(model: Path, device: str, rank: int, ranks: int, meet: str | None) -> Any:
    """A trainer that has made a step, so that it has moments."""
    from tailrace.trainer import TrainerConfig
    from tailrace.trainer.testing import make_experiences
    from tailrace.trainer.worker import TrainerWorker

    config = TrainerConfig(lr=1e-3, device=device, dtype="bfloat16", threads=1)
    worker = TrainerWorker(model, config, rank=rank, world_size=ranks, rendezvous=meet)
    worker.step([make_experiences(2, 2, vocab_size=VOCAB, seed=1)])
    return worker


def state_of(worker: Any) -> dict[str, Any]:
    """Weights and moments, the trainer's own memory, as DTensors."""
    from torch.distributed.tensor import DTensor

    found = {}
    for name, parameter in worker._model.parameters.items():
        found[f"parameter/{name}"] = parameter.detach()
        moments = worker._model.optimizer.state[worker._model.local[name]]
        for moment in ("exp_avg", "exp_avg_sq"):
            mesh, placements, shape = parameter.device_mesh, parameter.placements, parameter.shape
            found[f"{moment}/{name}"] = DTensor.from_local(
                moments[moment], mesh, placements, run_check=False, shape=shape, stride=parameter.stride()
            )
    return found


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def read_by_this_process() -> int:
    """Bytes that this process has asked the system for so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def one_rank(rank: int, ranks: int, root: Path, repeats: int, device: str) -> None:
    """Measure on one rank, and write what was found."""
    import torch
    import torch.distributed as dist
    from torch.distributed import checkpoint as dcp

    meet = f"file://{root}/meet"
    found: dict[str, Any] = {f"{kind}_{what}": [] for kind in KINDS for what in ("blocking_s", "durable_s")}
    with prepared(root / "model", device, rank, ranks, meet) as worker:
        state = state_of(worker)
        locals_ = {name: tensor.to_local() for name, tensor in state.items()}
        memory = {name: torch.empty_like(one, device="cpu", pin_memory=one.is_cuda) for name, one in locals_.items()}

        def copy() -> None:
            for name, tensor in locals_.items():
                memory[name].copy_(tensor, non_blocking=True)
            if device == "cuda":
                torch.cuda.synchronize()

        def ours(name: str, full: bool) -> Any:
            saved = worker.save(root / name, 1, full=full)
            return lambda: saved.result(_DEADLINE_S)

        def theirs() -> Any:
            pending = dcp.async_save(state, checkpoint_id=root / "dcp")
            return getattr(pending, "upload_completion", pending).result

        kinds = {
            "copy": lambda: copy() or (lambda: None),
            "full": lambda: ours("full", True),
            "weights": lambda: ours("weights", False),
            "dcp": theirs,
        }
        found["share_bytes"] = sum(one.nbytes for one in locals_.values())
        for turn in range(repeats + 1):  # the first turn touches the memory of all
            for kind, begin in kinds.items():
                dist.barrier()
                forget()
                before, began = resident(), time.perf_counter()
                blocking_s, finish = timed(begin)
                finish()
                dist.barrier()
                durable_s = time.perf_counter() - began
                if turn:
                    found[f"{kind}_blocking_s"].append(blocking_s)
                    found[f"{kind}_durable_s"].append(durable_s)
                else:
                    found[f"{kind}_peak_bytes"] = resident(peak=True) - before
                if rank == 0 and kind != "copy":
                    files = [path for path in (root / kind).rglob("*") if path.is_file()]
                    found[f"{kind}_bytes"] = sum(path.stat().st_size for path in files)
                    if turn < repeats:
                        shutil.rmtree(root / kind)
                dist.barrier()
        for kind, load in (
            ("full", lambda: worker.load(root / "full")),
            ("dcp", lambda: load_dcp(state, root / "dcp")),
        ):
            before = read_by_this_process()
            found[f"{kind}_load_s"], _ = timed(load)
            found[f"{kind}_read_bytes"] = read_by_this_process() - before
            dist.barrier()
    (root / f"rank-{rank}.json").write_text(json.dumps(found))


def load_dcp(state: dict[str, Any], directory: Path) -> None:
    from torch.distributed import checkpoint as dcp

    dcp.load(state, checkpoint_id=directory)


def measure(hidden: int, layers: int, repeats: int, device: str, ranks: int) -> dict[str, Any]:
    """Seconds, bytes and copies of each kind of save, and what a restart reads."""
    from tailrace.trainer.small_model import build_model

    with tempfile.TemporaryDirectory(prefix="checkpoint-bench-") as made:
        root = Path(made)
        path = build_model(root / "model", vocab_size=VOCAB, hidden=hidden, layers=layers, mlp=4 * hidden)
        (path / "tokenizer.json").write_text("{}")
        context = multiprocessing.get_context("spawn")
        processes = [
            context.Process(target=one_rank, args=(rank, ranks, root, repeats, device)) for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_DEADLINE_S)
            process.kill()
        if any(process.exitcode for process in processes):
            raise SystemExit(f"a rank of {ranks} failed, or was not done after {_DEADLINE_S:.0f} s")
        each = [json.loads((root / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    size = sum(one["share_bytes"] for one in each)
    result: dict[str, Any] = {"ranks": ranks, "device": device, "state_bytes": size, "repeats": repeats}
    for kind in KINDS:
        turns = [max(one[f"{kind}_blocking_s"][turn] for one in each) for turn in range(repeats)]
        copied = [max(one["copy_blocking_s"][turn] for one in each) for turn in range(repeats)]
        durable = [max(one[f"{kind}_durable_s"][turn] for one in each) for turn in range(repeats)]
        result[kind] = {
            "blocking_s": round(statistics.median(turns), 5),
            "blocking_spread_s": [round(min(turns), 5), round(max(turns), 5)],
            "over_copy": round(statistics.median([turn / one for turn, one in zip(turns, copied, strict=True)]), 3),
            "copies": round(sum(one[f"{kind}_peak_bytes"] for one in each) / size, 3),
        }
        if kind != "copy":
            result[kind] |= {
                "durable_s": round(statistics.median(durable), 4),
                "bytes": each[0][f"{kind}_bytes"],
            }
        if f"{kind}_read_bytes" in each[0]:
            result[kind]["load_s"] = round(max(one[f"{kind}_load_s"] for one in each), 4)
            result[kind]["read_over_share"] = round(
                max(one[f"{kind}_read_bytes"] / one["share_bytes"] for one in each), 4
            )
    return result


def show(found: dict[str, Any]) -> None:
    print(
        f"{found['ranks']} rank(s), state {found['state_bytes'] / 2**20:.0f} MiB on {found['device']}, "
        f"medians of {found['repeats']}"
    )
    print(
        f"  {'':8} {'blocks':>9} {'of a copy':>9} {'durable':>9} {'MiB':>8} {'copies':>7} {'load':>8} {'read/share':>10}"
    )
    for kind in KINDS:
        one = found[kind]
        durable, size = one.get("durable_s"), one.get("bytes")
        print(
            f"  {kind:8} {one['blocking_s']:>8.4f}s {one['over_copy']:>9.2f} "
            + (f"{durable:>8.3f}s {size / 2**20:>8.0f}" if durable is not None and size is not None else " " * 18)
            + f" {one['copies']:>7.2f} "
            + (f"{one['load_s']:>7.3f}s {one['read_over_share']:>10.3f}" if "load_s" in one else "")
        )


def run(fence: bool, root: Path, steps: int, seed: int) -> float:
    """Trained tokens per second of a quick start."""
    directory = root / f"{seed}-{'fence' if fence else 'open'}"
    words = ["run", "laminar", "--run-dir", str(directory), "--seed", str(seed)]
    for setting in (
        f"publish.fence={str(fence).lower()}",
        f"pipeline.steps={steps}",
        "evaluation.every=0",
        "evaluation.controls=false",
    ):
        words += ["--set", setting]
    subprocess.run([sys.executable, "-m", "tailrace.cli.main", *words], check=True, stdout=subprocess.DEVNULL)
    summary = json.loads((directory / "summary.json").read_text())
    if fence and summary["published_before_durable"]:
        raise SystemExit(f"{directory}: {summary['published_before_durable']} versions were published before durable")
    return float(summary["tokens_per_s"])


def throughput(pairs: int, steps: int) -> dict[str, Any]:
    """Trained tokens per second with a fence over without, by pairs that take turns."""
    found: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory(prefix="fence-bench-") as made:
        for seed in range(pairs):
            for fence in (True, False) if seed % 2 else (False, True):
                found[fence].append(run(fence, Path(made), steps, seed))
    ratios = [with_fence / without for with_fence, without in zip(found[True], found[False], strict=True)]
    return {
        "pairs": pairs,
        "steps": steps,
        "tokens_per_s_with_fence": found[True],
        "tokens_per_s_without": found[False],
        "fence_over_without": round(statistics.median(ratios), 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


def simulated() -> dict[str, Any]:
    """Trained tokens per second with a fence over without, of nine simulated settings."""
    from tailrace.fleetsim.reproduce.paper import Lab
    from tailrace.robustrl.paper.points import SETTINGS, fault_free

    points = {
        (*setting, fence): fault_free(*setting, quick=True).over(publish__fence=fence)
        for setting in SETTINGS
        for fence in (True, False)
    }
    lab = Lab()
    lab.simulate(points.values())
    rates = {name: lab[at].result.tokens_per_s for name, at in points.items()}
    ratios = {f"{w}, {m}": round(rates[w, m, True] / rates[w, m, False], 4) for w, m in SETTINGS}
    return {"simulated_fence_over_without": ratios, "simulated_median": statistics.median(ratios.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--runs", type=int, default=0, help="pairs of runs with and without a fence")
    parser.add_argument("--steps", type=int, default=20, help="of each of those runs")
    parser.add_argument("--simulated", action="store_true", help="simulate pairs at the paper's scale")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"by_ranks": []}
    for ranks in options.ranks:
        one = measure(options.hidden, options.layers, options.repeats, options.device, ranks)
        show(one)
        found["by_ranks"].append(one)
    if options.runs:
        found |= throughput(options.runs, options.steps)
        print(f"a fence costs                {1 - found['fence_over_without']:.1%} of trained tokens per second")
    if options.simulated:
        found |= simulated()
        for name, ratio in found["simulated_fence_over_without"].items():
            print(f"simulated, {name}: {ratio:.3f} of the tokens per second without a fence")
        print(f"simulated, median: {found['simulated_median']:.3f}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
