"""Tokens per second of whole runs of the task ``tool-sums``: Laminar, and a synchronous pipeline of the same parts, in turn.

The synchronous one generates a batch, waits for its last conversation, trains, and loads the weights everywhere. Its replicas,
too, go on with other conversations while a tool works: what it lacks is other batches' conversations. Both have the same warm
start (cached), prompts, tools, latencies and batch; none is evaluated meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tailrace.pipeline.run.figures.metrics import read_metrics

CONFIG = Path(__file__).parents[3] / "configs" / "laminar" / "tool-sums.toml"
SYNCHRONOUS = ("pipeline.admission=on-policy", "pipeline.sync=barrier", "pipeline.relocation=none")
SYSTEMS = {"laminar": (), "synchronous": SYNCHRONOUS}
TAIL, QUICK = "tail", "quick"
LATENCIES = {TAIL: (), QUICK: ("environment.options.latency={median = 0.0}",)}
OWN = ("evaluation.every=0", "evaluation.controls=false", "task.held_out_size=8", "checkpoint.every=1000")
DEADLINE_S = 1800.0


def tokens_per_s(root: Path) -> float:
    """Response tokens trained on per second, from the end of the first step to the end of the last."""
    steps = [row for row in read_metrics(root / "metrics.jsonl") if row["kind"] == "step"]
    return float(sum(row["response_tokens"] for row in steps[1:]) / (steps[-1]["t"] - steps[0]["t"]))


def run(root: Path, system: str, latency: str, steps: int, seed: int) -> Path:
    """Run a system, unless it has been run there."""
    if (root / "summary.json").is_file():
        return root
    settings = (*OWN, *SYSTEMS[system], *LATENCIES[latency], f"pipeline.steps={steps}")
    command = [sys.executable, "-m", "tailrace.cli.main", "run", str(CONFIG), "--seed", str(seed), "--plain"]
    command += [part for setting in settings for part in ("--set", setting)]
    root.parent.mkdir(parents=True, exist_ok=True)
    with root.with_suffix(".log").open("w") as log:
        done = subprocess.run(
            [*command, "--run-dir", str(root)], stdout=log, stderr=log, timeout=DEADLINE_S, check=False
        )
    if done.returncode:
        raise SystemExit(f"{root.with_suffix('.log')}: {system} ended with {done.returncode}")
    return root


def rates(directory: Path, latencies: list[str], repeats: int, steps: int) -> dict[str, list[float]]:
    """Figures of each repeat: tokens per second of both systems by latency, and their ratio; goes on where it was."""
    found: dict[str, list[float]] = {}
    for repeat in range(repeats):
        for latency in latencies:
            rate = {}
            for system in SYSTEMS if repeat % 2 == 0 else reversed(SYSTEMS):
                root = run(directory / f"{system}-{latency}-{repeat}", system, latency, steps, repeat)
                summary = json.loads((root / "summary.json").read_text())
                rate[system] = tokens_per_s(root)
                found.setdefault(f"{latency}.{system}_turns", []).append(float(summary["turns"]))
            for system, value in rate.items():
                found.setdefault(f"{latency}.{system}_tokens_per_s", []).append(value)
            ratio = rate["laminar"] / rate["synchronous"]
            found.setdefault(f"{latency}.laminar_over_synchronous", []).append(ratio)
    return found
