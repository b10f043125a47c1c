"""What a checkpoint costs a trainer: seconds that a save blocks, and the throughput of a run with a fence.

    uv run python tools/bench/checkpoint.py [--device cpu|cuda] [--hidden H] [--layers L] [--repeats N] [--runs PAIRS]
                                            [--simulated] [--json FILE]

Blocking is compared with one plain copy of the same state (weights and both moments) into host memory that was touched before,
pinned if the state is on a GPU, and with torch's `torch.distributed.checkpoint.async_save` of the same tensors. The three take
turns, and each save is durable before the next begins. The aim is a ratio of 1.3.

With `--runs`, pairs of runs of Laminar's quick start follow, with `publish.fence` and without, in turns; the aim is a ratio of
0.97 of their trained tokens per second. With `--simulated`, the same pairs of RobustRL's three workloads in its three modes,
without a fault, where a checkpoint is on disk after 10 s.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

VOCAB = 512


def prepared(root: Path, hidden: int, layers: int, device: str) -> Any:
    """A trainer that has made a step, so that it has moments."""
    from tailrace.trainer import TrainerConfig
    from tailrace.trainer.small import build_model
    from tailrace.trainer.testing import make_experiences
    from tailrace.trainer.worker import TrainerWorker

    path = build_model(root / "model", vocab_size=VOCAB, hidden=hidden, layers=layers, mlp=4 * hidden)
    (path / "tokenizer.json").write_text("{}")
    worker = TrainerWorker(path, TrainerConfig(lr=1e-3, device=device, threads=1))
    worker.step([make_experiences(2, 2, vocab_size=VOCAB, seed=1)])
    return worker


def state_of(worker: Any) -> dict[str, Any]:
    """Weights and moments, the trainer's own memory."""
    found = {}
    for name, shard in worker._model.local.items():
        found[f"parameter/{name}"] = shard
        for moment in ("exp_avg", "exp_avg_sq"):
            found[f"{moment}/{name}"] = worker._model.optimizer.state[shard][moment]
    return found


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = call()
    return time.perf_counter() - began, result


def measure(hidden: int, layers: int, repeats: int, device: str) -> dict[str, Any]:
    """Seconds of a plain copy, and of each kind of save until it returns and until it is durable."""
    import torch
    from torch.distributed.checkpoint import async_save

    seconds: dict[str, list[float]] = {
        name: [] for name in ("copy_s", "blocking_s", "durable_s", "torch_blocking_s", "torch_durable_s")
    }
    with tempfile.TemporaryDirectory(prefix="checkpoint-bench-") as made:
        root = Path(made)
        with prepared(root, hidden, layers, device) as worker:
            state = state_of(worker)
            memory = {
                name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                for name, tensor in state.items()
            }

            def copy() -> None:
                for name, tensor in state.items():
                    memory[name].copy_(tensor, non_blocking=True)
                if device == "cuda":
                    torch.cuda.synchronize()

            for turn in range(repeats + 1):  # the first turn touches the memory of all three
                copied_s, _ = timed(copy)
                began = time.perf_counter()
                blocked_s, saved = timed(lambda: worker.save(root / "ours", 1))
                saved.result(600)
                durable_s = time.perf_counter() - began
                began = time.perf_counter()
                theirs_s, pending = timed(lambda: async_save(state, checkpoint_id=root / "torch"))
                getattr(pending, "upload_completion", pending).result()
                theirs_durable_s = time.perf_counter() - began
                shutil.rmtree(root / "ours")
                shutil.rmtree(root / "torch")
                if turn:
                    found = (copied_s, blocked_s, durable_s, theirs_s, theirs_durable_s)
                    for name, value in zip(seconds, found, strict=True):
                        seconds[name].append(value)
            size = sum(tensor.nbytes for tensor in state.values())
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    spread = {name: [min(values), max(values)] for name, values in seconds.items()}
    ratios = [blocked / copied for blocked, copied in zip(seconds["blocking_s"], seconds["copy_s"], strict=True)]
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "state_bytes": size,
        "repeats": repeats,
        **{name: round(value, 5) for name, value in medians.items()},
        "spread": {name: [round(low, 5), round(high, 5)] for name, (low, high) in spread.items()},
        "blocking_over_copy": round(statistics.median(ratios), 3),
        "torch_blocking_over_copy": round(medians["torch_blocking_s"] / medians["copy_s"], 3),
    }


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
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--runs", type=int, default=0, help="pairs of runs with and without a fence")
    parser.add_argument("--steps", type=int, default=20, help="of each of those runs")
    parser.add_argument("--simulated", action="store_true", help="simulate pairs at the paper's scale")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.hidden, options.layers, options.repeats, options.device)
    print(f"state: {found['state_bytes'] / 2**20:.0f} MiB on {found['device']}, medians of {found['repeats']}")
    print(f"one plain copy               {found['copy_s']:.4f} s")
    print(
        f"save blocks                  {found['blocking_s']:.4f} s, {found['blocking_over_copy']:.2f} of a copy; durable "
        f"after {found['durable_s']:.3f} s"
    )
    print(
        f"torch's async_save blocks    {found['torch_blocking_s']:.4f} s, {found['torch_blocking_over_copy']:.2f} of a "
        f"copy; done after {found['torch_durable_s']:.3f} s"
    )
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
