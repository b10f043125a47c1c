"""The simulator beside the real thing: the quick starts on this machine, simulated from a profile of it, and run.

    uv run python tools/bench/simulator_truth.py [--apps laminar staleflow] [--profile FILE] [--repeats N] [--json FILE]

    profile              without --profile, `tailrace profile APP` first, for each app: one short run, on other prompts. What a
                         model learns when groups without a signal are left out is another workload than when they are not.
    throughput           response tokens trained on per second, from the tenth batch to the last, on both sides:
                         start-up, first batches and what follows training (the controls are left out) do not count.
    mean staleness       over the same batches, by the versions that generated each trajectory.
    repacks              replicas emptied by relocation, over the whole run.
    long rounds          of the whole run, where batching knows rounds.
    turns                where environments answer: turns of a response, turns answered per second over the same batches, and
                         the share of the trajectories' time that environments have, over the whole run.

An app may be a configuration: `--apps configs/laminar/tool-sums.toml`.

All of them are what `tailrace compare` shows of a simulation and of a run.

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
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tailrace.fleetsim.profile.run import Others
from tailrace.fleetsim.results.watch import watch
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.report import Figures, Record, measured, read_record
from tailrace.report.fold.folds import Folds
from tailrace.report.fold.turns import Where

NO_CONTROLS = "evaluation.controls=false"
THROUGHPUT_LIMIT, STALENESS_LIMIT, REPACK_LIMIT = 0.15, 0.5, 2.0
TURNS_LIMIT, SHARE_LIMIT = 0.1, 0.1
MOST_SPELLS = 256
TIMEOUT_S = 1800.0
LOOK_S = 0.5


@dataclass(frozen=True)
class Verdict:
    """One figure on both sides: its error is a share of the real value, a difference, or a factor."""

    figure: str
    simulated: float
    real: float
    error: float
    limit: float

    @property
    def holds(self) -> bool:
        return self.error <= self.limit


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
            profile = options.profile or measured_profile(
                app, Path(scratch) / f"{Path(app).stem}.toml", options.settings
            )
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
    watched = [watch(config, seed=seed, keep_events=False) for seed in range(options.seeds)]
    roots = [scratch / f"{Path(app).stem}-{number}" for number in range(options.repeats)]
    records = [real_run(app, settings, root) for root in roots]
    simulated, runs = [one.figures for one in watched], [measured(record, app) for record in records]
    verdicts = verdicts_of(simulated, runs, config)
    if watched[0].folds.rounds.used:
        verdicts.append(long_rounds([one.folds for one in watched], [record.folds for record in records]))
    if records[0].folds.run.counts.turns:
        verdicts += turn_verdicts(simulated, [one.folds for one in watched], runs, [one.folds for one in records])
    print(table(app, simulated, runs, verdicts), flush=True)
    return [
        {
            "app": app,
            "holds": verdict.holds,
            **dataclasses.asdict(verdict),
            "runs": [run.to_json() for run in runs],
        }
        for verdict in verdicts
    ]


def real_run(app: str, settings: tuple[str, ...], root: Path) -> Record:
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
    record = read_record(RunDirectory.open(root))
    print(
        f"{app}: ran in {time.monotonic() - began:.0f} s beside {others.cores:.2f} cores' worth of other programs",
        flush=True,
    )
    return record


def long_rounds(simulated: list[Folds], runs: list[Folds]) -> Verdict:
    """Long rounds: the means are to be the same once rounded."""
    sides = [
        fmean(sum(one.kind == "long" for one in fold.rounds.rounds) for fold in side) for side in (simulated, runs)
    ]
    ours, real = sides
    return Verdict("long rounds", ours, real, abs(round(ours) - round(real)), 0.0)


def turn_verdicts(
    simulated: list[Figures], modelled: list[Folds], runs: list[Figures], found: list[Folds]
) -> list[Verdict]:
    """Turns of a response, turns answered per second, and the share of the trajectories' time that environments have."""
    sides = ((simulated, modelled), (runs, found))
    responses = [fmean(turns_of_a_response(folds) for folds in folded) for _, folded in sides]
    rates = [fmean(map(answered_per_s, figures, folded)) for figures, folded in sides]
    shares = [fmean(folds.turns.shares()[Where.ENVIRONMENT] for folds in folded) for _, folded in sides]
    return [
        Verdict("turns of a response", *responses, abs(responses[0] - responses[1]) / responses[1], TURNS_LIMIT),
        Verdict("turns/s", *rates, abs(rates[0] - rates[1]) / rates[1], THROUGHPUT_LIMIT),
        Verdict("share in environments", *shares, abs(shares[0] - shares[1]), SHARE_LIMIT),
    ]


def turns_of_a_response(folds: Folds) -> float:
    """Mean over training responses."""
    counts = Counter(folds.run.counts.turns_of_each)
    return sum(turns * count for turns, count in counts.items()) / counts.total()


def answered_per_s(figures: Figures, folds: Folds) -> float:
    """Turns that environments answered while batches were measured, per second."""
    since, until = figures.measured_s
    spells = [one for one in folds.turns.latencies.spells(MOST_SPELLS) if since <= one.begin_s and one.end_s <= until]
    return sum(one.bins.total() for one in spells) / sum(one.end_s - one.begin_s for one in spells) if spells else 0.0


def verdicts_of(simulated: list[Figures], runs: list[Figures], config: RunConfig) -> list[Verdict]:
    """Throughput, staleness, and repacks, of which 0 and fewer than 1 count as equal. Both sides are means."""

    def both(of: Callable[[Figures], float]) -> tuple[float, float]:
        return fmean(map(of, simulated)), fmean(map(of, runs))

    rates, staleness = both(lambda f: f.response_tokens_per_s), both(lambda f: f.staleness_mean)
    repacks = both(lambda f: f.moves_per_batch * config.pipeline.steps)
    less, more = sorted(max(1.0, side) for side in repacks)
    return [
        Verdict("trained tokens/s", *rates, abs(rates[0] - rates[1]) / rates[1], THROUGHPUT_LIMIT),
        Verdict("mean staleness", *staleness, abs(staleness[0] - staleness[1]), STALENESS_LIMIT),
        Verdict("repacks", *repacks, more / less, REPACK_LIMIT),
    ]


def table(app: str, simulated: list[Figures], runs: list[Figures], verdicts: list[Verdict]) -> str:
    lines = [f"\n{Path(app).stem:22} {'simulated':>10} {'real':>10} {'error':>8} {'limit':>8}"]
    for verdict in verdicts:
        sign = {"trained tokens/s": "%", "turns/s": "%", "turns of a response": "%", "repacks": "x"}.get(
            verdict.figure, ""
        )
        scale = 100 if sign == "%" else 1
        digits = 0 if verdict.real >= 100 else 2
        lines.append(
            f"{verdict.figure:22} {verdict.simulated:>10,.{digits}f} {verdict.real:>10,.{digits}f} "
            f"{scale * verdict.error:>7.2f}{sign or ' '} {scale * verdict.limit:>7.4g}{sign or ' '} "
            f"{'pass' if verdict.holds else 'MISS'}"
        )
    steps_s = [fmean(figures.step_s for figures in side) for side in (simulated, runs)]
    lines.append(f"{'seconds a step':22} {steps_s[0]:>10.2f} {steps_s[1]:>10.2f}")
    if len(runs) > 1:
        lines.append(f"{'real runs':22} " + ", ".join(f"{run.response_tokens_per_s:,.0f} tokens/s" for run in runs))
    return "\n".join(lines) + "\n"


def tailrace(command: str) -> list[str]:
    return [sys.executable, "-m", "tailrace.cli.main", command]


def with_settings(settings: Any) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


if __name__ == "__main__":
    main()
