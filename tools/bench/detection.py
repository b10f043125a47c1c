"""Detection under tool waits: how often each policy takes somebody for down who is well, and how late it notices who is not.

    uv run tools/bench/detection.py [--hours 10000] [--json FILE]

A fleet in virtual time, the controller and executor of real runs. Its replicas mostly wait for tools, whose latencies have a
long tail. In the first part nothing is broken: `role-aware` must take nobody for down in all those hours. The two baselines of
RobustRL (section 4) are shown beside it, over fewer hours: `rank-level` restarts whoever waits, and so would never end. In the
second part members of every role hang, engines stand still and processes are killed, one after the other.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from folded import Folded

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.run.figures.detection import DetectionFold

POLICIES = ("role-aware", "rank-level", "cluster-level")
BASELINE_HOURS = 20.0
EVERY_S = 3_000.0  # between two faults
STRUCK = (
    "hang:replica:0",
    "stall:replica:1",
    "hang:trainer",
    "hang:relay",
    "hang:data",
    "hang:scorer",
    "hang:environment",
)
KILLED = ("replica:1", "trainer", "relay", "data", "scorer", "environment")


def config(policy: str, faults: tuple[str, ...]) -> dict[str, Any]:
    every_s = 4.0 if faults else 10.0  # between two looks
    return {
        "app": "laminar",
        "faults": list(faults),
        "pipeline": {
            "detection": policy, "steps": 100_000, "prompts_per_step": 8, "samples_per_prompt": 4, "open_batches": 2,
            "recovery": {"name": "isolate", "max_restarts": 10**9, "trainer_restarts": 10**9, "data_restarts": 10**9},
        },
        "rollout": {"max_tokens": 9_000},
        "checkpoint": {"every": 1},
        "fleet": {
            "model": "Qwen2.5-7B",
            "steady": False,
            "rollout": {"gpus": 2},
            "trainer": {"gpus": 2},
            "delays": {"snapshot_s": every_s, "report_s": every_s},
            "workload": {
                "prompt": 512,
                "response": 1_024,
                "environment": {
                    "calls": {"counts": {"8": 1.0}},
                    "latency": {"median": 600.0, "sigma": 1.5, "cap": 20_000.0},
                },
            },
        },
    }  # fmt: skip


def measured(policy: str, hours: float, faults: tuple[str, ...] = ()) -> dict[str, Any]:
    """Simulate so many hours, in runs of 500 hours at most, each with a seed of its own, and add their figures up."""
    simulated_s = 0.0
    counts = {"detections": 0, "false_detections": 0, "late_detections": 0}
    began, seed = time.perf_counter(), 0
    while simulated_s < hours * 3600:
        fleet = build_fleet(validate([("bench", config(policy, faults))]), seed=seed)
        fold = DetectionFold(fleet.spec.detection)
        simulation = Simulation(fleet, keep_events=False, observers=(Folded(fold.hears),))
        end_s = min(hours * 3600 - simulated_s, 500 * 3600.0)
        simulation.executor.run(
            simulation.controller, simulation.log, faults=fleet.faults, until=lambda s=simulation, e=end_s: s.now >= e
        )
        simulated_s, seed = simulated_s + simulation.now, seed + 1
        found = fold.figures()
        for name in counts:
            counts[name] += getattr(found, name)
    return {
        "policy": policy,
        "simulated_hours": round(simulated_s / 3600, 1),
        **counts,
        "faults": len(faults),
        "wall_s": round(time.perf_counter() - began, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--hours", type=float, default=10_000.0, help="simulated hours without a fault under role-aware"
    )
    parser.add_argument("--json", type=Path, help="where the figures go")
    given = parser.parse_args()
    rows = []
    for policy in POLICIES:
        rows.append(measured(policy, given.hours if policy == "role-aware" else min(given.hours, BASELINE_HOURS)))
        print(json.dumps(rows[-1]), flush=True)
    script = (*STRUCK, *KILLED)
    faults = tuple(f"{fault}@{(number + 1) * EVERY_S:.0f}s" for number, fault in enumerate(script))
    for policy in ("role-aware",):
        rows.append(measured(policy, (len(faults) + 1) * EVERY_S / 3600, faults))
        print(json.dumps(rows[-1]), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
