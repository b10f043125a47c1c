"""What five trackers, of which two fail, cost a run: its seconds beside those of the same run without any, taking turns.

    uv run python tools/bench/trackers.py [--app NAME] [--steps N] [--repeats N] [--json FILE]

TensorBoard, Trackio and Prometheus write beside the run. wandb and MLflow are given servers that refuse: nobody listens at
their addresses. Figures are the seconds of the steps after the first two, from the log, and the lines about trackers
in the summary.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

NOWHERE = "http://127.0.0.1:9"
FIRST = 2
TRACKED = (
    'tracking.to=["tensorboard", "wandb", "trackio", "mlflow", "prometheus"]',
    f"tracking.options.mlflow.address={NOWHERE}",
    "tracking.options.wandb.mode=online",
)


def once(app: str, steps: int, run: Path, settings: tuple[str, ...]) -> tuple[float, list[str]]:
    """One run: seconds of its steps, and what its summary says of trackers."""
    given = [f"pipeline.steps={steps}", "evaluation.every=0", "evaluation.controls=false", *settings]
    command = [sys.executable, "-m", "tailrace.cli.main", "run", app, "--plain", "--run-dir", str(run)]
    command += [part for setting in given for part in ("--set", setting)]
    key = {"WANDB_BASE_URL": NOWHERE, "WANDB_API_KEY": "0" * 40}  # as if somebody was logged in there
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **key})
    if done.returncode:
        raise SystemExit(f"`{' '.join(command)}` ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    instants = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()[1:]]
    ended = [one["t"] for one in instants for event in one["events"] if event["is"] == "Stepped"]
    return ended[-1] - ended[FIRST - 1], [
        line for line in json.loads((run / "summary.json").read_text())["warnings"] if "tracker" in line
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Seconds of a run with five trackers, of which two fail.")
    parser.add_argument("--app", default="laminar")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"none": [], "five": []}
    lines: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="trackers-") as name:
        for repeat in range(options.repeats):
            for which, settings in (("none", ("tracking.to=[]",)), ("five", TRACKED)):
                took_s, said = once(options.app, options.steps, Path(name) / f"{which}-{repeat}", settings)
                seconds[which].append(round(took_s, 2))
                print(f"{which}: {took_s:.1f} s", flush=True)
                if which == "five":
                    lines.append(said)
    ratio = median(seconds["five"]) / median(seconds["none"])
    print(f"five beside none: {ratio:.3f}")
    print("\n".join(lines[-1]))
    if options.json:
        report: dict[str, Any] = {"benchmark": "trackers", "seconds": seconds, "ratio": round(ratio, 4), "lines": lines}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
