"""Planning time of skewness-aware dispatch beside the sort that it cannot do without, and beside plain enumeration.

    uv run python tools/bench/dispatch_plan.py [--repeats N] [--slow-up-to TRAJECTORIES] [--json FILE]

Lengths are lognormal, as outputs of a reasoning model are. All take turns, and each figure is the median of CPU time, of which
planning takes as much as a core gives it. The shapes:

    equal      one profile, free replicas: every split is tried
    busy       one profile, each replica busy with the last batch for a time of its own
    unequal    two profiles, one for each half of the fleet, and busy replicas

`sort` puts the same lengths in order. `plain` enumerates the splits without remembering anything, and spreads the tail by
looking at every queue for each trajectory; it does `equal` only, and its plan must be the same. The limit is 0.5 s for
131,072 trajectories on 1,024 replicas; the exit status is 1 above it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailrace.repack import ThroughputModel, plan_dispatch
from tailrace.repack.testing.streamrl_reference import split_slowly, spread_slowly

SIZES = ((1_024, 16), (8_192, 128), (131_072, 1_024))
SHAPES = ("equal", "busy", "unequal")
LIMIT_S, ALPHA, LONGEST = 0.5, 0.2, 32_768
# StaleFlow, Table 4: Qwen3-30B-A3B on one H20; and a replica of twice its bandwidth and computing.
MODELS = (ThroughputModel(7.28e-8, 1.72e-3, 1.25e-4, 1.07e-2), ThroughputModel(3.64e-8, 8.6e-4, 6.25e-5, 1.07e-2))
KV_TOKENS = (300_000, 240_000)


def profile(kind: int) -> dict[str, Callable[..., Any]]:
    model, room = MODELS[kind], KV_TOKENS[kind]
    return {
        "step_latency_s": lambda batch: model.step_latency_s(room / 2, batch),
        "max_batch": lambda length: max(1, int(room // length)),
    }


def batch(shape: str, trajectories: int, replicas: int) -> tuple[list[int], dict[str, Any]]:
    numbers = random.Random(f"{shape} {trajectories}")
    lengths = [min(LONGEST, max(1, int(numbers.lognormvariate(7.3, 0.9)))) for _ in range(trajectories)]
    ordered = sorted(lengths)
    given: dict[str, Any] = {"p50": ordered[len(ordered) // 2], "p90": ordered[len(ordered) * 9 // 10]}
    first, second = profile(0), profile(1)
    if shape == "unequal":
        given |= {name: [(first, second)[index % 2][name] for index in range(replicas)] for name in first}
    else:
        given |= first
    if shape != "equal":
        given["left_s"] = [numbers.expovariate(1 / 30) for _ in range(replicas)]
    return lengths, given


def timed_s(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    answer = call()
    return time.process_time() - start, answer


def main() -> int:
    parser = argparse.ArgumentParser(description="Planning time of skewness-aware dispatch.")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--slow-up-to", type=int, default=8_192, help="most trajectories that plain enumeration plans")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = []
    print(
        f"{'shape':<8} {'trajectories':>12} {'replicas':>8} {'tail':>5} {'plan ms':>18} {'/ sort':>7} {'plain ms':>10}"
    )
    for shape in SHAPES:
        for trajectories, replicas in SIZES:
            lengths, given = batch(shape, trajectories, replicas)
            plans, sorts, slow_s = [], [], None
            for _ in range(options.repeats):
                seconds, plan = timed_s(lambda: plan_dispatch(lengths, replicas, alpha=ALPHA, **given))  # noqa: B023
                plans.append(seconds)
                sorts.append(timed_s(lambda: sorted(lengths, reverse=True))[0])  # noqa: B023
            if shape == "equal" and trajectories <= options.slow_up_to:
                slow_s, split = timed_s(lambda: split_slowly(lengths, replicas, alpha=ALPHA, **given)[1])  # noqa: B023
                tail = sorted(lengths, reverse=True)[: sum(map(len, plan.queues[: plan.tail_replicas]))]
                spread_s, queues = timed_s(lambda: spread_slowly(tail, split))  # noqa: B023
                slow_s += spread_s
                same = [[lengths[at] for at in queue] for queue in plan.queues[: plan.tail_replicas]]
                if split != plan.tail_replicas or same != [[tail[at] for at in queue] for queue in queues]:
                    raise SystemExit(f"{shape} {trajectories}: the two plans differ")
            plan_ms, spread_ms = statistics.median(plans) * 1e3, (min(plans) * 1e3, max(plans) * 1e3)
            ratio = statistics.median(plans) / statistics.median(sorts)
            rows.append(
                {
                    "shape": shape,
                    "trajectories": trajectories,
                    "replicas": replicas,
                    "tail_replicas": plan.tail_replicas,
                    "plan_ms": plan_ms,
                    "plan_ms_range": spread_ms,
                    "over_sort": ratio,
                    "plain_tail_ms": None if slow_s is None else slow_s * 1e3,
                }
            )
            beside = "-" if slow_s is None else f"{slow_s * 1e3:.1f}"
            print(
                f"{shape:<8} {trajectories:>12,} {replicas:>8,} {plan.tail_replicas:>5} "
                f"{plan_ms:>7.1f} ({spread_ms[0]:.0f}-{spread_ms[1]:.0f}) {ratio:>7.1f} {beside:>10}",
                flush=True,
            )
    worst_s = max(row["plan_ms"] for row in rows) / 1e3
    print(f"longest: {worst_s:.3f} s, limit {LIMIT_S} s")
    if options.json:
        options.json.write_text(
            json.dumps({"benchmark": "dispatch_plan", "limit_s": LIMIT_S, "rows": rows}, indent=2) + "\n"
        )
    return int(worst_s > LIMIT_S)


if __name__ == "__main__":
    raise SystemExit(main())
