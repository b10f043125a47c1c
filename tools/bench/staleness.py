"""Reserve and occupy pairs per second of the staleness manager, by bound and by entries in flight.

    uv run python tools/bench/staleness.py [--json FILE]

The buffers are kept full: each pair is one occupy of a random trajectory in flight, one reserve at the trainer's version, and a
consume whenever a buffer is ready, as in a rollout that always has work. Beside it, in the same run: the plain counter that
an in-flight cap keeps (which bounds nothing), and the line-by-line reference at small sizes.
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

from tailrace.staleness import StalenessManager
from tailrace.staleness.testing.reference import ReferenceManager

BOUNDS = (0, 1, 3, 10)
IN_FLIGHT = (1_000, 10_000, 100_000, 1_000_000)
REFERENCE_UP_TO = 1_000
LIMIT_PER_S = 150_000  # what is asked for with a million entries in flight


class InFlightCounter:
    """The peer: started - consumed < (bound + 1) * batch, batches in the order of completion."""

    def __init__(self, bound: int, batch_size: int) -> None:
        self.version = 0
        self.batch_size = batch_size
        self.room = (bound + 1) * batch_size
        self.started: dict[int, int] = {}
        self.complete: list[int] = []

    def can_reserve(self, version: int) -> bool:
        return version <= self.version and len(self.started) + len(self.complete) < self.room

    def reserve(self, key: int, version: int) -> None:
        self.started[key] = version

    def occupy(self, key: int) -> None:
        del self.started[key]
        self.complete.append(key)

    def ready(self) -> bool:
        return len(self.complete) >= self.batch_size

    def consume(self) -> list[int]:
        batch, self.complete = self.complete[: self.batch_size], self.complete[self.batch_size :]
        self.version += 1
        return batch


def pairs_per_s(manager: Any, pairs: int, seed: int) -> float:
    """One repeat. The choice of trajectories costs time too; it is drawn before, as positions in the list of what runs."""
    running: list[int] = []
    key = 0
    while manager.can_reserve(0):
        manager.reserve(key, 0)
        running.append(key)
        key += 1
    numbers = random.Random(seed)
    drawn = [numbers.random() for _ in range(pairs)]
    started = time.perf_counter()
    for draw in drawn:
        if not running:
            break
        place = int(draw * len(running))
        done = running[place]
        running[place] = running[-1]
        running.pop()
        manager.occupy(done)
        if manager.ready():
            manager.consume()
        version = manager.version
        while manager.can_reserve(version):
            manager.reserve(key, version)
            running.append(key)
            key += 1
    return pairs / (time.perf_counter() - started)


def median_pairs_per_s(build: Callable[[], Any], pairs: int, repeats: int) -> float:
    return statistics.median(pairs_per_s(build(), pairs, seed) for seed in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--pairs", type=int, default=300_000, help="at least; with more in flight, as many as in flight"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    print(f"{'bound':>5} {'in flight':>10} {'pairs/s':>10} {'us/pair':>8} {'counter/s':>10} {'reference/s':>12}")
    for bound in BOUNDS:
        for in_flight in IN_FLIGHT:
            batch = in_flight // (bound + 1)
            pairs = max(options.pairs, in_flight)
            mine = median_pairs_per_s(lambda: StalenessManager(bound, batch), pairs, options.repeats)  # noqa: B023
            counter = median_pairs_per_s(lambda: InFlightCounter(bound, batch), pairs, options.repeats)  # noqa: B023
            slow = None
            if in_flight <= REFERENCE_UP_TO:
                slow = pairs_per_s(ReferenceManager(bound, batch), 300, 0)
            row = {
                "bound": bound,
                "batch_size": batch,
                "in_flight": (bound + 1) * batch,
                "pairs": pairs,
                "pairs_per_s": mine,
                "counter_pairs_per_s": counter,
                "reference_pairs_per_s": slow,
            }
            rows.append(row)
            beside = f"{slow:>12,.0f}" if slow is not None else f"{'-':>12}"
            print(
                f"{bound:>5} {row['in_flight']:>10,} {mine:>10,.0f} {1e6 / mine:>8.2f} {counter:>10,.0f} {beside}",
                flush=True,
            )
    for bound in BOUNDS:
        mine = [row["pairs_per_s"] for row in rows if row["bound"] == bound]
        print(f"bound {bound}: a thousand times the entries cost {mine[0] / mine[-1]:.2f} times the time per pair")
    worst = min(row["pairs_per_s"] for row in rows if row["in_flight"] > 900_000)
    print(f"slowest with a million in flight: {worst:,.0f} pairs/s; asked for: {LIMIT_PER_S:,}")
    if options.json:
        summary = {
            "benchmark": "staleness",
            "asked_per_s": LIMIT_PER_S,
            "slowest_at_a_million_per_s": worst,
            "rows": rows,
        }
        options.json.write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
