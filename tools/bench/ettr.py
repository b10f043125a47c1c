"""Effective training time (ETTR) under faults of the trainer: role-based recovery beside a restart of the whole task.

    uv run tools/bench/ettr.py                       # simulated: RobustRL's 8B on 128 H20, in its three modes
    uv run tools/bench/ettr.py --real [--steps 20] [--prompts 128] [--repeats 1]      # the same three on this machine, on Ray
    uv run tools/bench/ettr.py --json FILE

Each mode runs three times in turn: without a fault, with role-based recovery, and with a restart of the task, the last two with
a fault of the trainer in every ten steps. RobustRL prints 0.80 beside 0.60 (section 7.2). A restart of its trainer takes about
0.55 of a step; with `--real` the end of a line says what it took here, and `--prompts` makes a step longer.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace.fleetsim.reproduce.paper import Lab
from tailrace.robustrl.paper.points import MODES, byterobust, fault_free, robustrl

WORKLOAD = "8b-math"
RESTART_TASK = "restart-task"
SYSTEMS = {"without faults": fault_free, "role-based": robustrl, RESTART_TASK: byterobust}
LIMIT_S = 3_600.0


def simulated(mode: str, *, quick: bool) -> Iterator[dict[str, Any]]:
    """Three systems in virtual time."""
    points = {name: of(WORKLOAD, mode, quick=quick) for name, of in SYSTEMS.items()}
    lab = Lab(processes=os.cpu_count() or 1)
    lab.simulate(points.values())
    for name, at in points.items():
        effective, result = lab[at].effective, lab[at].result
        assert effective is not None
        hours = result.duration_s / 3600
        yield row("simulated", mode, name, effective.ettr, effective.ettr_strict, hours, at.config().pipeline.steps)


def real(mode: str, options: argparse.Namespace, repeat: int) -> Iterator[dict[str, Any]]:
    """Three runs of the quick start, one after the other."""
    for name in SYSTEMS:
        settings = {
            "pipeline.mode": mode,
            "pipeline.steps": options.steps,
            "pipeline.prompts_per_step": options.prompts,
            "pipeline.recovery": RESTART_TASK if name == RESTART_TASK else "role-based",
            "faults": "[]" if name == "without faults" else '["trainer@every10"]',
            "evaluation.every": 0,
            "evaluation.controls": "false",
            "seed": repeat,
        }
        root = Path(tempfile.mkdtemp(prefix="ettr-")) / "run"
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = [
            sys.executable,
            "-m",
            "tailrace.cli.main",
            "run",
            "robustrl",
            "--plain",
            "--run-dir",
            str(root),
            *words,
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        summary = json.loads((root / "summary.json").read_text())
        if summary["lost_trajectories"] or (
            summary["turns_lost"] and name != RESTART_TASK
        ):  # which generates them again
            raise SystemExit(f"{root}: found lost trajectories or turns, expected none")
        found = row(
            "real", mode, name, summary["ettr"], summary["ettr_strict"], summary["training_s"] / 3600, options.steps
        )
        away = [one["serving_s"] - one["struck_s"] for one in summary["faults"] if one["serving_s"] is not None]
        found["restart_over_step"] = statistics.fmean(away) * options.steps / summary["training_s"] if away else None
        yield found


def row(kind: str, mode: str, system: str, ettr: float, strict: float, hours: float, steps: int) -> dict[str, Any]:
    """One line of the table."""
    found = {
        "kind": kind,
        "mode": mode,
        "system": system,
        "ettr": ettr,
        "ettr_strict": strict,
        "hours": hours,
        "steps": steps,
    }
    return found | {"load": round(os.getloadavg()[0], 1)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="run on this machine")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--quick", action="store_true", help="simulate 30 steps, not 100")
    parser.add_argument("--steps", type=int, default=20, help="of each real run")
    parser.add_argument("--prompts", type=int, default=128, help="of a step of each real run")
    parser.add_argument("--repeats", type=int, default=1, help="of the real runs, each with the next seed")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    for repeat in range(options.repeats if options.real else 1):
        for mode in options.modes:
            for found in real(mode, options, repeat) if options.real else simulated(mode, quick=options.quick):
                rows.append(found)
                took = found.get("restart_over_step")
                print(
                    f"{found['kind']}, {mode}, {found['system']}: ettr {found['ettr']:.3f}, strict {found['ettr_strict']:.3f}, "
                    f"{found['steps']} steps in {found['hours']:.2f} h"
                    + ("" if took is None else f", a restart takes {took:.2f} of a step"),
                    flush=True,
                )
    if options.json is not None:
        options.json.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
