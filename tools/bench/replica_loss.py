"""What deaths of replicas cost: the throughput that is lost over the share of all replicas' time that was lost.

    uv run tools/bench/replica_loss.py [--steps 40] [--seeds 5] [--json FILE]

Simulates RobustRL's 8B on 128 H20 in its three modes, without a fault and with a replica killed at random in each step, each
pair with equal lengths. A replica is away from its death until its successor has weights. A ratio of 1 is the replica's share;
the aim is at most 1: its trajectories go on elsewhere with what they have, and so cost only what is prefilled again. In
`semi-sync` and `sync` a hybrid's death restarts the trainer, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from folded import Folded

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.figures.faults import FaultFold
from tailrace.robustrl.paper.points import MODES

CONFIGS = Path(__file__).parents[2] / "configs" / "robustrl"
KILLS = "replica@every1"


def simulated(mode: str, steps: int, seed: int, faults: tuple[str, ...]) -> tuple[float, int, float, int]:
    """Seconds of the run, replicas, seconds for which one was away, summed, and deaths."""
    config = configuration(
        str(CONFIGS / f"fleet-8b-math-{mode}.toml"),
        settings=[f"pipeline.steps={steps}", f"faults={json.dumps(faults)}"],
    )
    fleet = build_fleet(config, seed=seed)
    faults_seen = FaultFold()
    simulation = Simulation(fleet, keep_events=False, observers=(Folded(faults_seen.hears),))
    simulation.run()
    deaths = faults_seen.figures().struck
    away_s = sum((simulation.now if one.serving_s is None else one.serving_s) - one.struck_s for one in deaths)
    return simulation.now, len(simulation.models.replicas), away_s, len(deaths)


def measured(mode: str, steps: int, seed: int) -> dict[str, Any]:
    """A pair of runs."""
    calm_s, replicas, _, _ = simulated(mode, steps, seed, ())
    struck_s, _, away_s, deaths = simulated(mode, steps, seed, (KILLS,))
    lost, share = 1 - calm_s / struck_s, away_s / (replicas * struck_s)
    return {
        "mode": mode,
        "seed": seed,
        "replicas": replicas,
        "deaths": deaths,
        "lost": lost,
        "share": share,
        "ratio": lost / share,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    rows = []
    for mode in MODES:
        of_mode = [measured(mode, options.steps, seed) for seed in range(options.seeds)]
        rows += of_mode
        ratios = sorted(row["ratio"] for row in of_mode)
        print(
            f"{mode}, {of_mode[0]['replicas']} replicas, {sum(row['deaths'] for row in of_mode)} deaths: "
            f"{statistics.fmean(row['lost'] for row in of_mode):.2%} of the throughput lost, "
            f"{statistics.fmean(row['share'] for row in of_mode):.2%} of the replicas' time; "
            f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )
    if options.json is not None:
        options.json.write_text(json.dumps(rows) + "\n")


if __name__ == "__main__":
    main()
