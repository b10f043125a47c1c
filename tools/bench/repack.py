"""Planning time of best-fit consolidation beside Algorithm 1 line by line, measured in the same run.

    uv run python tools/bench/repack.py [--repeats N] [--slow-up-to N] [--json FILE]

Both plan the same fleets in turn, and each figure is the median. Every fleet is one version with every replica a candidate,
the largest case of its size. The shapes:

    tail       usage and counts as in a long tail: most replicas nearly empty, a few half full
    uniform    usage uniform over the cache, counts uniform up to the batch limit
    equal      every replica alike
    crowded    half of the replicas are full of requests: the worst case of a scan for the fullest that fits
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from tailrace.repack import Move, ReplicaLoad, consolidate
from tailrace.repack.testing.consolidation_reference import consolidate_slowly

KV_THRESHOLD, BATCH = 0.99, 256
SIZES = (16, 64, 256, 1024, 4096)
SHAPES = ("tail", "uniform", "equal", "crowded")


def shaped(shape: str, numbers: random.Random, position: float) -> tuple[float, int]:
    """KV share and requests of the replica at a position (0 to 1) in the fleet."""
    if shape == "tail":
        return numbers.random() ** 4 * 0.9, 1 + int(numbers.random() ** 4 * 128)
    if shape == "uniform":
        return numbers.random() * 0.98, numbers.randrange(1, BATCH)
    if shape == "equal":
        return 0.1, 8
    return 0.001 + 0.4 * position, numbers.choice([1, BATCH - 1])


def fleet(shape: str, size: int) -> list[ReplicaLoad]:
    numbers = random.Random(f"{shape} {size}")
    loads = []
    for index in range(size):
        kv, requests = shaped(shape, numbers, index / size)
        loads.append(ReplicaLoad(f"replica-{index:04}", 7, kv, kv, requests, kv_peak=KV_THRESHOLD))
    numbers.shuffle(loads)
    return loads


def timed_s(plan: Callable[..., list[Move]], loads: list[ReplicaLoad]) -> tuple[float, list[Move]]:
    start = time.perf_counter()
    moves = plan(loads, kv_threshold=KV_THRESHOLD, roofline_batch=BATCH)
    return time.perf_counter() - start, moves


def main() -> None:
    parser = argparse.ArgumentParser(description="Planning time of best-fit consolidation.")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--slow-up-to", type=int, default=4096, help="largest fleet that the slow reference also plans")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = []
    print(f"{'shape':<8} {'candidates':>10} {'moves':>6} {'best-fit ms':>12} {'line by line ms':>16} {'ratio':>7}")
    for shape in SHAPES:
        for size in SIZES:
            loads = fleet(shape, size)
            fast, slow = [], []
            for repeat in range(options.repeats):
                fast_s, moves = timed_s(consolidate, loads)
                fast.append(fast_s)
                # The slow one takes seconds on the largest fleets: three repeats say enough there.
                if size <= options.slow_up_to and (size < 1024 or repeat < 3):
                    slow_s, same = timed_s(consolidate_slowly, loads)
                    slow.append(slow_s)
                    if same != moves:
                        raise SystemExit(f"{shape} {size}: the two plans differ")
            fast_ms = statistics.median(fast) * 1e3
            slow_ms = statistics.median(slow) * 1e3 if slow else None
            rows.append(
                {
                    "shape": shape,
                    "candidates": size,
                    "moves": len(moves),
                    "best_fit_ms": fast_ms,
                    "reference_ms": slow_ms,
                }
            )
            beside = f"{slow_ms:>16.2f} {slow_ms / fast_ms:>7.1f}" if slow_ms is not None else f"{'-':>16} {'-':>7}"
            print(f"{shape:<8} {size:>10} {len(moves):>6} {fast_ms:>12.3f} {beside}", flush=True)
    if options.json:
        options.json.write_text(json.dumps({"benchmark": "repack", "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
