"""What a restart takes, stage by stage: of the trainer alone, with its machine, on a standby's machine, and of the whole task.

    uv run tools/bench/restart.py [--repeats 3] [--mode semi-sync] [--json FILE]

Trains a small model on three machines of a Ray cluster on this host, and kills the trainer in its backward pass, or its machine
with its disk. Each way is run in turn. *All serve* is when every member that went down is up again and each replica has pulled
weights. RobustRL (section 7.3, Figure 14) prints a restart of the task that takes 1.5 to 1.7 times as long as one of the
trainer alone, in semi-sync mode.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.run.eventlog import read_log

LIMIT_S = 1_200.0
STAGES = ("detect", "destroy", "place", "import", "initialise", "load", "reconnect")
KILLED, MACHINE = "trainer@step3:backward", "machine:0@step3"
WAYS = {
    "trainer alone": (KILLED, '"role-based"'),
    "trainer with its machine": (MACHINE, '"role-based"'),
    "trainer on a standby's machine": (MACHINE, '{ name = "role-based", standby = true }'),
    "whole task": (KILLED, '"restart-task"'),
}
CONFIG = """
app = "robustrl"
base = "quickstart"
faults = ["{fault}"]
[task]
name = "brief-chain-sum"
held_out_size = 16
[model.small]
hidden = 32
layers = 2
[warm_start]
steps = 2
flawless_steps = 0
[pipeline]
mode = "{mode}"
steps = 6
prompts_per_step = 16
recovery = {recovery}
[checkpoint]
domains = ["disk", "peer"]
[rollout]
replicas = 3
max_tokens = 24
[evaluation]
controls = false
"""


def measure(way: str, mode: str, seed: int) -> dict[str, Any]:
    """One run. Seconds of each stage of the trainer's return, and until all serve."""
    fault, recovery = WAYS[way]
    with tempfile.TemporaryDirectory(prefix="restart-") as folder:
        root, file = Path(folder) / "run", Path(folder) / "restart.toml"
        file.write_text(CONFIG.format(fault=fault, recovery=recovery, mode=mode))
        words = [sys.executable, "-m", "tailrace.cli.main", "run", str(file), "--plain", "--run-dir", str(root)]
        done = subprocess.run(
            [*words, "--seed", str(seed)], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        if done.returncode:
            raise SystemExit(f"{way}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        summary = json.loads((root / "summary.json").read_text())
        (struck,) = summary["faults"]
        if summary["lost_trajectories"] or struck["serving_s"] is None:
            raise SystemExit(
                f"{way}: found {summary['lost_trajectories']} lost trajectories and {struck}, expected none"
            )
        found = {stage: struck["stages"].get(stage, 0.0) for stage in STAGES}
        return found | {
            "way": way,
            "trainer back": struck["serving_s"] - struck["struck_s"]
            if fault == KILLED
            else sum(found.values()) - found["reconnect"],
            "all serve": _all_serve_s(root / "events.jsonl", struck["struck_s"]) - struck["struck_s"],
            "busy": round(os.getloadavg()[0], 1),  # the machine's load
        }


def _all_serve_s(log: Path, struck_s: float) -> float:
    """When the last member that went down in the fault was up again, a replica with weights."""
    away: set[tuple[str, str]] = set()
    blank: set[str] = set()
    fell = False
    for instant in read_log(log):
        if instant.now < struck_s:
            continue
        for event in instant.events:
            if isinstance(event, c.Down):
                fell = True
                away.add((event.role, event.id))
            elif isinstance(event, c.Up):
                if (event.role, event.id) in away and event.role == "replica":
                    blank.add(event.id)
                away.discard((event.role, event.id))
            elif isinstance(event, c.Pulled):
                blank.discard(event.replica)
        away |= {(one.role, one.id) for one in instant.commands if isinstance(one, c.Restart)}
        if fell and not away and not blank:
            return instant.now
    raise SystemExit(f"{log}: found {sorted(away)} down and {sorted(blank)} without weights at the end, expected none")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mode", choices=("semi-sync", "async", "sync"), default="semi-sync")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for repeat in range(options.repeats):
        for way in WAYS:
            rows.append(measure(way, options.mode, repeat))
            print({name: round(v, 2) if isinstance(v, float) else v for name, v in rows[-1].items()}, flush=True)
    print(f"\nmedians of {options.repeats}, s")
    for name in (*STAGES, "trainer back", "all serve"):
        print(f"{name:14}", *(f"{_median(rows, way, name):8.2f}  {way}" for way in WAYS), sep="\n    ")
    ratio = _median(rows, "whole task", "all serve") / _median(rows, "trainer alone", "all serve")
    print(f"\nwhole task over trainer alone, until all serve: {ratio:.2f}")
    if options.json is not None:
        options.json.write_text(json.dumps({"runs": rows, "task_over_trainer": ratio}) + "\n")


def _median(rows: Sequence[dict[str, Any]], way: str, name: str) -> float:
    return statistics.median(row[name] for row in rows if row["way"] == way)


if __name__ == "__main__":
    main()
