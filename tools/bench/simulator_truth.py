"""The simulator beside the real thing: the quick starts on this machine, simulated from a profile of it, and run.

    uv run python tools/bench/simulator_truth.py [--apps laminar staleflow] [--profile FILE] [--repeats N] [--json FILE]

    profile              without --profile, `tailrace profile APP` first, for each app: one short run, on other prompts. What a
                         model learns when groups without a signal are left out is another workload than when they are not.
    throughput           tokens trained on per second, prompts included, from the tenth batch to the last, on both sides:
                         start-up, first batches and what follows training (the controls are left out) do not count.
    mean staleness       over the same batches, by the versions that generated each trajectory.
    repacks              replicas emptied by relocation, over the whole run.

The simulation knows the profile and the configuration, and nothing of the run that it is compared with: other prompts, other
samples. The profile is a run of its own: what changes while the model learns (the share of groups whose rewards differ, which
`staleflow` filters by) is taken from there, version by version. Simulated figures are means over seeds. The
real run has the machine to itself: how many cores other programs kept busy is printed, and on a busy machine the comparison
says nothing. Exit status 0, whatever it finds: it is a measurement.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tailrace.fleetsim.profile.processor import Others
from tailrace.fleetsim.profile.truth import Figures, Verdict, compare, mean_of, real_figures, simulated_figures
from tailrace.fleetsim.run import simulate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.directory import RunDirectory

NO_CONTROLS = "evaluation.controls=false"
WARM_UP = 10
TIMEOUT_S = 1800.0
LOOK_S = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description="The simulator beside the real thing on this machine.")
    parser.add_argument("--apps", nargs="+", default=["laminar", "staleflow"])
    parser.add_argument("--profile", type=Path, help="a file that `tailrace profile` wrote; measured anew if absent")
    parser.add_argument("--repeats", type=int, default=1, help="real runs of each app")
    parser.add_argument("--seeds", type=int, default=5, help="simulations of each app")
    parser.add_argument("--set", action="append", default=[], dest="settings", metavar="KEY=VALUE")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tailrace-truth-") as scratch:
        rows = []
        for app in options.apps:
            profile = options.profile or measured_profile(app, Path(scratch) / f"{app}.toml", options.settings)
            rows += compared(app, profile, options, Path(scratch))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def measured_profile(app: str, path: Path, settings: list[str]) -> Path:
    command = [*tailrace("profile"), app, "--out", str(path), *with_settings(settings)]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    print(flush=True)
    return path


def compared(app: str, profile: Path, options: argparse.Namespace, scratch: Path) -> list[dict[str, Any]]:
    """Simulate, run, print the table."""
    settings = (*options.settings, NO_CONTROLS)
    config = configuration(app, settings=(*settings, f'fleet.profile="{profile}"'))
    simulated = simulated_figures([simulate(config, seed=seed, keep_events=False) for seed in range(options.seeds)])
    runs = [real_run(app, config, settings, scratch / f"{app}-{number}") for number in range(options.repeats)]
    verdicts = compare(simulated, mean_of(runs))
    print(table(app, simulated, runs, verdicts), flush=True)
    return [
        {
            "app": app,
            "holds": verdict.holds,
            **dataclasses.asdict(verdict),
            "runs": [dataclasses.asdict(run) for run in runs],
        }
        for verdict in verdicts
    ]


def real_run(app: str, config: RunConfig, settings: tuple[str, ...], root: Path) -> Figures:
    command = [*tailrace("run"), app, "--run-dir", str(root), "--plain", *with_settings(settings)]
    began = time.monotonic()
    with (root.parent / f"{root.name}.txt").open("w+") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        others = Others(process.pid)
        while process.poll() is None:
            if time.monotonic() - began > TIMEOUT_S:
                process.terminate()
            time.sleep(LOOK_S)
            others.look()
        output.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(command)} ended with status {process.returncode}:\n{output.read()[-2000:]}")
    figures = real_figures(RunDirectory.open(root), min(WARM_UP, config.pipeline.steps // 3))
    print(
        f"{app}: ran in {time.monotonic() - began:.0f} s beside {others.cores:.2f} cores' worth of other programs",
        flush=True,
    )
    return figures


def table(app: str, simulated: Figures, runs: list[Figures], verdicts: list[Verdict]) -> str:
    lines = [f"\n{app:18} {'simulated':>10} {'real':>10} {'error':>8} {'limit':>8}"]
    for verdict in verdicts:
        sign = {"trained tokens/s": "%", "repacks": "x"}.get(verdict.figure, "")
        scale = 100 if sign == "%" else 1
        digits = 0 if verdict.real >= 100 else 2
        lines.append(
            f"{verdict.figure:18} {verdict.simulated:>10,.{digits}f} {verdict.real:>10,.{digits}f} "
            f"{scale * verdict.error:>7.2f}{sign or ' '} {scale * verdict.limit:>7.4g}{sign or ' '} "
            f"{'pass' if verdict.holds else 'MISS'}"
        )
    lines.append(f"{'seconds a step':18} {simulated.step_s:>10.2f} {mean_of(runs).step_s:>10.2f}")
    if len(runs) > 1:
        lines.append(f"{'real runs':18} " + ", ".join(f"{run.tokens_per_s:,.0f} tokens/s" for run in runs))
    return "\n".join(lines) + "\n"


def tailrace(command: str) -> list[str]:
    return [sys.executable, "-m", "tailrace.cli.main", command]


def with_settings(settings: Any) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


if __name__ == "__main__":
    main()
