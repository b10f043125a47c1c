"""Processor time of a run that is neither engine nor gradient: driver, Ray, data, scorer, relays.

    uv run python tools/bench/processor_share.py [--app NAME] [--steps N] [--set KEY=VALUE] [--run-dir DIR] [--json FILE]

`tailrace run APP` without evaluations and controls, watched from outside, from the end of its second step to the end of its
last. Figures are processor seconds of each role over that time, in cores, and their share of the run's processor seconds;
members of `replica` and `trainer` hold engine and gradients, all other processes are neither. On a busy machine a run takes
longer, so that what happens once a second weighs more beside what happens once a token.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from processor_time import ProcessorTime, cores

WORK = ("replica", "trainer")
LOOK_S = 0.5
TIMEOUT_S = 1200.0
FIRST = 2  # steps that fill caches and buffers


def main() -> None:
    parser = argparse.ArgumentParser(description="Processor time of a run by role.")
    parser.add_argument("--app", default="laminar")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="settings")
    parser.add_argument("--run-dir", type=Path, help="a new directory, which is kept")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.steps <= FIRST:
        parser.error(
            f"argument --steps: found {options.steps}, expected more than the first {FIRST}, which are not counted"
        )
    with tempfile.TemporaryDirectory(prefix="processor-share-") as name:
        report = measure(options.app, options.steps, options.settings, options.run_dir or Path(name) / "run")
    show(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def measure(app: str, steps: int, settings: list[str], run: Path) -> dict[str, Any]:
    given = [f"pipeline.steps={steps}", "evaluation.every=0", "evaluation.controls=false", *settings]
    command = ["tailrace", "run", app, "--plain", "--run-dir", str(run)]
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            [*command, *(part for setting in given for part in ("--set", setting))], stdout=said, stderr=said
        )
        times = ProcessorTime(child.pid)
        times.start()
        try:
            follow(child, times, run)
        finally:
            child.terminate()
            child.wait(60.0)
            times.stop()
        if child.returncode:
            said.seek(0)
            raise SystemExit(f"`{' '.join(command)}` ended with {child.returncode}:\n{said.read()[-3000:]}")
    ended = [
        row["at"]
        for line in (run / "metrics.jsonl").read_text().splitlines()
        if (row := json.loads(line))["kind"] == "step"
    ]
    used = cores(times.samples, ended[FIRST - 1], ended[-1])
    machine = used.pop("machine")
    neither = sum(value for role, value in used.items() if role not in WORK)
    return {
        "benchmark": "processor_share",
        "app": app,
        "settings": given,
        "seconds": round(ended[-1] - ended[FIRST - 1], 1),
        "seconds_per_step": round((ended[-1] - ended[FIRST - 1]) / (len(ended) - FIRST), 2),
        "cores": {role: round(value, 4) for role, value in used.items()},
        "neither_cores": round(neither, 4),
        "neither_core_seconds_per_step": round(neither * (ended[-1] - ended[FIRST - 1]) / (len(ended) - FIRST), 3),
        "neither_share_of_run": round(neither / sum(used.values()), 4),
        "neither_share_of_machine": round(neither / (os.cpu_count() or 1), 4),
        "others_cores": round(max(0.0, machine - sum(used.values())), 3),
        "machine_cores": os.cpu_count(),
    }


def follow(child: subprocess.Popen[bytes], times: ProcessorTime, run: Path) -> None:
    """Until the run has ended, learn from its status which process has which role."""
    deadline = time.monotonic() + TIMEOUT_S
    while child.poll() is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {TIMEOUT_S:.0f} s for the run in {run}, which did not end")
        status = run / "status.json"
        if status.exists():
            told = json.loads(status.read_text())
            if told["members"]:
                times.members(told["members"], told["pid"])
        time.sleep(LOOK_S)


def show(report: dict[str, Any]) -> None:
    print(f"{report['app']}: {report['seconds']} s, {report['seconds_per_step']} s a step")
    for role, value in report["cores"].items():
        print(f"  {role:<12} {value:7.3f} cores")
    print(f"  other programs on {report['others_cores']} cores")
    neither, per_step = report["neither_cores"], report["neither_core_seconds_per_step"]
    of_run, of_machine = report["neither_share_of_run"], report["neither_share_of_machine"]
    print(f"neither engine nor gradient: {neither:.3f} cores, {per_step:.2f} core seconds a step")
    print(f"  {of_run:.1%} of the run's processor time, {of_machine:.1%} of the machine's cores")


if __name__ == "__main__":
    main()
