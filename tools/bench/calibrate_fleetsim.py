"""Searches the simulator's free parameters on a third of a paper's targets, and StaleFlow's splits of devices.

    uv run python tools/bench/calibrate_fleetsim.py search laminar --rounds 1 --jobs 2
    uv run python tools/bench/calibrate_fleetsim.py splits

`search` goes through the parameters of a paper's ``parameters.toml`` that are marked as fitted, one after the other, and
tries a step down and a step up, within what is plausible. A step is kept if the mean error over the targets in `fitted_on`,
each counted as 1 at most, falls by at least 0.002. No other target is looked at. Everything is deterministic, and short: the
simulations are those of ``tailrace reproduce --quick``. It prints every trial and the values to write into the file.

`splits` tunes the devices that train, for each of StaleFlow's models and systems by the same rule (section 6.1: "we tune the
GPU allocation ratio between rollout and training to optimal values"): of the splits in eighths, the one with the highest
throughput on average over the bounds. It prints the table of ``tailrace/staleflow/paper/points.py``.
"""

from __future__ import annotations

import argparse
import statistics
import time

from tailrace.contracts import plugins
from tailrace.fleetsim.reproduce import Paper, reproduce
from tailrace.fleetsim.reproduce.paper import GROUP, Lab, Parameter
from tailrace.staleflow.paper.points import ASYNC, BOUNDS, MODELS, NODE, ONE_STEP, point

STEP = 1.15
LEAST = 0.002
EIGHTHS = range(2, 7)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    searching = commands.add_parser("search")
    searching.add_argument("paper", choices=plugins.names(GROUP))
    searching.add_argument("--rounds", type=int, default=1)
    searching.add_argument("--only", nargs="*", default=[], help="parameters; all that are fitted if none is named")
    splitting = commands.add_parser("splits")
    for each in (searching, splitting):
        each.add_argument("--jobs", type=int, default=None)
    options = parser.parse_args()
    if options.command == "search":
        search(plugins.load(GROUP, options.paper), options.rounds, options.only, options.jobs)
    else:
        splits(options.jobs)


def search(paper: Paper, rounds: int, only: list[str], jobs: int | None) -> None:
    """Coordinate descent in steps of 15 %."""
    known = paper.parameters
    free = [one for one in known.known.values() if one.fitted and (not only or one.name in only)]
    chosen: dict[str, float] = {}
    best = mean_error(paper, known.fitted_on, chosen, jobs)
    print(f"{len(free)} parameters, {len(known.fitted_on)} targets, mean error {best:.4f}", flush=True)
    for _ in range(rounds):
        before = best
        for one in free:
            for number in steps(one, chosen.get(one.name, one.value)):
                error = mean_error(paper, known.fitted_on, {**chosen, one.name: number}, jobs)
                print(f"{one.name} = {number:g}: {error:.4f}{'  kept' if error < best - LEAST else ''}", flush=True)
                if error < best - LEAST:
                    best, chosen = error, {**chosen, one.name: number}
                    break
        if best == before:
            break
    print(f"mean error {best:.4f} with {chosen or 'the values as they are'}")


def steps(one: Parameter, value: float) -> list[float]:
    """A step down and a step up, within what is plausible."""
    around = [float(f"{number:.3g}") for number in (value / STEP, value * STEP)]
    return [number for number in around if one.low <= number <= one.high]


def mean_error(paper: Paper, targets: tuple[str, ...], values: dict[str, float], jobs: int | None) -> float:
    """Over the targets, each counted as 1 at most."""
    with paper.parameters.trial(values):
        found = reproduce(paper, only=targets, processes=jobs, quick=True)
    return statistics.fmean(min(1.0, record.relative_error) for record in found.records)


def splits(jobs: int | None) -> None:
    """The best split of every model and system."""
    began = time.monotonic()
    tried = {
        (name, system, trainer): [
            point(system, name, bound, trainer=trainer) for bound in (BOUNDS if system != ONE_STEP else BOUNDS[:1])
        ]
        for name, model in MODELS.items()
        for system in ("staleflow", ONE_STEP, ASYNC)
        for trainer in sorted({round(model.gpus * eighths / 8 / NODE) * NODE for eighths in EIGHTHS})
    }
    lab = Lab(processes=jobs)
    lab.simulate(each for points in tried.values() for each in points)
    for name in MODELS:
        best = []
        for system in ("staleflow", ONE_STEP, ASYNC):
            speeds = {
                trainer: statistics.fmean(lab[each].result.tokens_per_s for each in points)
                for (model, of, trainer), points in tried.items()
                if (model, of) == (name, system)
            }
            print(f"{name} {system}: {', '.join(f'{trainer}: {speed:,.0f}' for trainer, speed in speeds.items())}")
            best.append(max(speeds, key=lambda trainer: speeds[trainer]))
        print(f"{name}: {tuple(best)}", flush=True)
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
