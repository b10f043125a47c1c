"""How fast the simulator is, and how its cost grows with devices and with trajectories.

    uv run python tools/bench/simulator_speed.py [--only NAME ...] [--repeats N] [--large] [--json FILE]

Each case is Laminar's pipeline on a fleet, in a process of its own: simulated trajectories per second, GPU-hours per second,
microseconds per trajectory, peak memory. Building the fleet and importing are left out of the time, the controller, its
policies, the engines and the workload are in it. Aims: 100,000 trajectories/s, and 1,000 GPU-hours/s for 72B on 1,024 H800.
`--large` adds 10,240 and 102,400 GPUs, with a batch that grows with them.

Beside it stands a limit measured in the same process: a heap that only pops and pushes one entry for each event, what any
event-driven simulator in this language has to do at least.
"""

from __future__ import annotations

import argparse
import heapq
import json
import multiprocessing
import resource
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.target import configuration


@dataclass(frozen=True)
class Case:
    """Laminar's pipeline on a fleet: devices that train and generate, groups of 16 in a batch."""

    model: str
    train: int
    rollout: int
    parallel: int
    groups: int
    steps: int

    @property
    def gpus(self) -> int:
        return self.train + self.rollout

    def settings(self) -> tuple[str, ...]:
        replicas = self.rollout // self.parallel
        return (
            f"pipeline.steps={self.steps}",
            f"pipeline.prompts_per_step={self.groups}",
            f"pipeline.buffer_prompts={4 * self.groups}",
            "pipeline.samples_per_prompt=16",
            f"pipeline.prompts_per_replica={max(1, min(64, self.groups // replicas))}",
            'pipeline.training={name="mini-batch", parts=16}',
            "rollout.max_tokens=16384",
            f'fleet={{model="{self.model}"}}',
            f"fleet.trainer.gpus={self.train}",
            f"fleet.rollout={{gpus={self.rollout}, tensor_parallel={self.parallel}}}",
        )


CASES = {
    "7B on 64": Case("Qwen2.5-7B", 40, 24, 1, 512, 12),
    "7B on 256": Case("Qwen2.5-7B", 192, 64, 1, 512, 12),
    "32B on 128": Case("Qwen2.5-32B", 64, 64, 4, 512, 12),
    "32B on 512": Case("Qwen2.5-32B", 256, 256, 4, 512, 12),
    "72B on 1,024": Case("Qwen2.5-72B", 768, 256, 8, 512, 12),
    "72B on 1,024, batch x 4": Case("Qwen2.5-72B", 768, 256, 8, 2048, 6),
}
LARGE = {
    "72B on 10,240": Case("Qwen2.5-72B", 7_680, 2_560, 8, 5_120, 4),
    "72B on 102,400": Case("Qwen2.5-72B", 76_800, 25_600, 8, 51_200, 3),
}


def measure(name: str) -> dict[str, float]:
    case = (CASES | LARGE)[name]
    fleet = build_fleet(configuration("laminar", settings=case.settings()))
    simulation = Simulation(fleet, keep_events=False)
    began = time.perf_counter()
    simulation.run()
    took_s = time.perf_counter() - began
    trajectories = sum(sum(row.lags.values()) for row in simulation.rows)
    return {
        "trajectories_per_s": trajectories / took_s,
        "gpu_hours_per_s": case.gpus * simulation.now / 3600 / took_s,
        "us_per_trajectory": took_s / trajectories * 1e6,
        "heap_limit_per_s": heap_limit(2 * case.rollout // case.parallel),
        "took_s": took_s,
        "trajectories": trajectories,
        "simulated_h": simulation.now / 3600,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
    }


def heap_limit(pending: int) -> float:
    """Events per second of a heap that does nothing else."""
    heap = [(float(index), index) for index in range(pending)]
    count = 200_000
    began = time.perf_counter()
    for index in range(count):
        at, _ = heapq.heappop(heap)
        heapq.heappush(heap, (at + 7.0, index))
    return count / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=[*CASES, *LARGE], help="these cases")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = options.only or [*CASES, *(LARGE if options.large else ())]
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(options.repeats):  # interleaved: what else the machine does falls on all alike
        for name in names:
            if name in LARGE and found[name]:
                continue
            with context.Pool(1) as pool:
                found[name].append(pool.apply(measure, (name,)))
    head = f"{'case':<26}{'traj/s':>10}{'(min-max)':>18}{'us/traj':>9}{'GPU-h/s':>9}{'heap/s':>11}{'GiB':>6}{'s':>7}"
    print(head, "-" * len(head), sep="\n")
    rows = {}
    for name, results in found.items():
        rates = [result["trajectories_per_s"] for result in results]
        middle = {key: statistics.median(result[key] for result in results) for key in results[0]}
        rows[name] = {**asdict((CASES | LARGE)[name]), **middle, "repeats": len(results)}
        spread = f"({min(rates):,.0f}-{max(rates):,.0f})"
        print(
            f"{name:<26}{middle['trajectories_per_s']:>10,.0f}{spread:>18}{middle['us_per_trajectory']:>9.1f}"
            f"{middle['gpu_hours_per_s']:>9,.0f}{middle['heap_limit_per_s']:>11,.0f}{middle['peak_gib']:>6.2f}{middle['took_s']:>7.1f}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
