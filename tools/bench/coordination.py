"""How long StaleFlow's strategies take to decide, beside Algorithms 3 to 5 step by step, measured in the same run.

    uv run python tools/bench/coordination.py [--repeats N] [--slow-up-to N] [--only SIZE] [--json FILE]

A cycle is one pass of Algorithm 1: synchronisation, migration and routing over the same snapshot. The limit is the paper's
100 ms (footnote 3). Each figure is over random cycles of a kind:

    steady    most replicas run near what is worth running; a little has come back to the pool, some new groups may start
    bump      a version was just published: every replica is behind, drained a little, and a candidate for synchronisation
    resume    every replica has pulled and everything that ran is back in the pool
    cold      an empty fleet and a pool of groups that have not started
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from tailrace.contracts import Cycle, Progress, ReplicaView, TrajectoryView
from tailrace.repack import MarginalThroughput, Migration, WhenUseful
from tailrace.repack.testing import SlotAdmission
from tailrace.repack.testing.staleflow_reference import migrate_slowly, route_slowly, sync_slowly

# StaleFlow, Table 4: Qwen3-30B-A3B on one H20, whose KV cache holds some 300,000 tokens.
TABLE_4, KV_TOKENS, PROMPT = (7.28e-8, 1.72e-3, 1.25e-4, 1.07e-2), 300_000, 120
ROUTING, SYNC, MIGRATION = MarginalThroughput(*TABLE_4), WhenUseful(), Migration(*TABLE_4)
SIZES = ((16, 1024), (64, 8192), (128, 8192), (1024, 131_072))
KINDS = ("steady", "bump", "resume", "cold")
PUBLISHED, GROUP, LIMIT_MS = 7, 16, 100.0


def grown(numbers: random.Random) -> int:
    """Tokens of a trajectory somewhere on its way."""
    return PROMPT + int(min(20_000, numbers.lognormvariate(7.3, 0.9)) * numbers.random())


def replica(numbers: random.Random, place: int, count: int, version: int | None, oldest: int) -> ReplicaView:
    name = f"replica-{place:04}"
    held = {
        f"{name}/{number}": TrajectoryView(
            f"{name}/{number}", place * 1000 + number, numbers.randint(oldest, version or 0), grown(numbers)
        )
        for number in range(count)
    }
    kv = min(1.0, sum(view.tokens for view in held.values()) / KV_TOKENS)
    return ReplicaView(
        replica=name,
        version=version,
        pulling=False,
        in_flight=count,
        capacity=256,
        kv=kv,
        kv_before=kv,
        kv_peak=kv,
        waiting=0,
        fresh=True,
        running=count,
        kv_capacity_tokens=KV_TOKENS,
        trajectories=held,
    )


def groups(count: int) -> dict[str, TrajectoryView]:
    names = [(f"new-{group}/{number}", group) for group in range(10**7, 10**7 + count) for number in range(GROUP)]
    return {name: TrajectoryView(name, group, None, PROMPT) for name, group in names}


def random_cycle(kind: str, replicas: int, trajectories: int, numbers: random.Random) -> Cycle:
    each, pool, slots = trajectories // replicas, {}, {PUBLISHED: trajectories}
    if kind == "steady":
        # Replicas lag by up to two versions, each has finished up to half of its work, and a hundredth was interrupted.
        fleet = [
            replica(numbers, place, each - numbers.randrange(each // 2), PUBLISHED - numbers.choice([0, 0, 0, 1, 2]), 4)
            for place in range(replicas)
        ]
        for number in range(trajectories // 100):
            view = TrajectoryView(f"back-{number}", -number, numbers.randint(4, PUBLISHED), grown(numbers))
            pool.setdefault(view.version, {})[view.trajectory] = view
        slots = {PUBLISHED: replicas // 8}
        pool[None] = groups(trajectories // GROUP // 4)
    elif kind == "bump":
        fleet = [
            replica(numbers, place, each - numbers.randrange(each // 2), PUBLISHED - 1, PUBLISHED - 3)
            for place in range(replicas)
        ]
        pool[None] = groups(trajectories // GROUP // 4)
    elif kind == "resume":
        before = [replica(numbers, place, each, PUBLISHED - 1, PUBLISHED - 3) for place in range(replicas)]
        fleet = [
            dataclasses.replace(view, version=PUBLISHED, in_flight=0, running=0, kv=0.0, trajectories={})
            for view in before
        ]
        for view in before:
            for name, trajectory in view.trajectories.items():
                pool.setdefault(trajectory.version, {})[name] = trajectory
        pool[None] = groups(trajectories // GROUP // 4)
    else:
        fleet = [replica(numbers, place, 0, PUBLISHED, 0) for place in range(replicas)]
        pool[None] = groups(trajectories // GROUP)
    return Cycle(
        replicas=fleet,
        pool={version: pool[version] for version in sorted(pool, key=lambda version: (version is None, version or 0))},
        admits=SlotAdmission(slots),
        progress=Progress(PUBLISHED, PUBLISHED, 0, 0, 0, 0, 0, 128, 1000),
        routing=ROUTING,
    )


def timed_ms(decide: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    made = decide()
    return (time.perf_counter() - start) * 1e3, made


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(kind: str, replicas: int, trajectories: int, repeats: int, slow_up_to: int) -> dict[str, object]:
    times: dict[str, list[float]] = {"sync": [], "migrate": [], "route": [], "cycle": []}
    slow: dict[str, list[float]] = {"sync": [], "migrate": [], "route": []}
    counts: dict[str, list[int]] = {"sync": [], "migrate": [], "route": []}
    for repeat in range(repeats):
        cycle = random_cycle(kind, replicas, trajectories, random.Random(f"{kind} {replicas} {repeat}"))
        fast = {
            "sync": lambda cycle=cycle: SYNC.pulls(cycle),
            "migrate": lambda cycle=cycle: MIGRATION.plan(cycle),
            "route": lambda cycle=cycle: ROUTING.route(cycle),
        }
        plain = {
            "sync": lambda cycle=cycle: sync_slowly(cycle),
            "migrate": lambda cycle=cycle: migrate_slowly(MIGRATION, cycle),
            "route": lambda cycle=cycle: route_slowly(ROUTING, cycle),
        }
        total = 0.0
        for strategy, decide in fast.items():
            spent, made = timed_ms(decide)
            total += spent
            times[strategy].append(spent)
            counts[strategy].append(len(made))
            if trajectories <= slow_up_to and repeat == 0:
                spent, same = timed_ms(plain[strategy])
                slow[strategy].append(spent)
                if list(same) != list(made):
                    raise SystemExit(f"{kind} {replicas}x{trajectories}, {strategy}: the two decisions differ")
        times["cycle"].append(total)
    return {
        "kind": kind,
        "replicas": replicas,
        "trajectories": trajectories,
        "p50_ms": {name: statistics.median(values) for name, values in times.items()},
        "p99_ms": {name: percentile(values, 0.99) for name, values in times.items()},
        "decisions": {name: statistics.mean(values) for name, values in counts.items()},
        "reference_ms": {name: values[0] for name, values in slow.items() if values},
    }


def shown(row: dict[str, dict[str, float]]) -> str:
    cells = [f"{row['kind']:<7} {row['replicas']:>5} {row['trajectories']:>7}"]
    cells += [f"{row['p50_ms'][name]:>9.2f}" for name in ("sync", "migrate", "route")]
    cells += [f"{row['p50_ms']['cycle']:>9.2f} {row['p99_ms']['cycle']:>9.2f}"]
    cells += [f"{row['decisions'][name]:>8.0f}" for name in ("sync", "route")]
    slow = row["reference_ms"]
    cells += [f"{sum(slow.values()):>12.1f}" if slow else f"{'-':>12}"]
    return " ".join(cells)


def growth(points: list[dict[str, dict[str, float]]]) -> float:
    """The slope of log cost over log trajectories."""
    sizes = [math.log(row["trajectories"]) for row in points]
    return statistics.linear_regression(sizes, [math.log(row["p50_ms"]["cycle"]) for row in points]).slope


def main() -> None:
    parser = argparse.ArgumentParser(description="Decision time of StaleFlow's strategies.")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--slow-up-to", type=int, default=1024, help="largest number of trajectories for the reference")
    parser.add_argument("--only", metavar="SIZE", help="one size, such as 128x8192")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = []
    print(f"milliseconds; the limit for a cycle is {LIMIT_MS:.0f}")
    print(
        f"{'kind':<7} {'repl.':>5} {'traj.':>7} {'sync p50':>9} {'migr p50':>9} {'route p50':>9} "
        f"{'cycle p50':>9} {'cycle p99':>9} {'pulls':>8} {'routed':>8} {'step by step':>12}"
    )
    for replicas, trajectories in SIZES:
        if options.only not in (None, f"{replicas}x{trajectories}"):
            continue
        for kind in KINDS:
            # The largest cycles take a while to draw.
            repeats = options.repeats if trajectories < 100_000 else max(1, options.repeats // 6)
            row = measure(kind, replicas, trajectories, repeats, options.slow_up_to)
            rows.append(row)
            print(shown(row), flush=True)
    for kind in KINDS:
        points = [row for row in rows if row["kind"] == kind]
        if len(points) > 1:
            print(f"{kind}: the cost of a cycle grows as the number of trajectories to the power {growth(points):.2f}")
    if options.json:
        options.json.write_text(
            json.dumps({"benchmark": "coordination", "limit_ms": LIMIT_MS, "rows": rows}, indent=2) + "\n"
        )


if __name__ == "__main__":
    main()
