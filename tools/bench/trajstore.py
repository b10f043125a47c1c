"""Appends a second into the trajectory store, beside the plain file that is their limit, measured in the same run.

    uv run python tools/bench/trajstore.py [--deltas N] [--tokens N] [--seconds S] [--json FILE]

A call streams in one delta for each of so many trajectories, as a replica does after a few decode steps: one transaction.
The limit writes the same tokens and log-probabilities to a file, one write for each call, and waits for the disk where the
store does. Store and limit take turns; figures are medians over the turns.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from array import array
from pathlib import Path

from tailrace.trajstore import Assignment, PartialDelta, TrajectoryStore

TURNS = 5


def store_rate(folder: Path, synchronous: str, deltas: int, tokens: int, seconds: float, turn: int) -> float:
    """Deltas a second."""
    numbers = random.Random(turn)
    values = tuple(-numbers.random() for _ in range(tokens))
    ids = tuple(numbers.randrange(150_000) for _ in range(tokens))
    path = None if synchronous == "memory" else folder / f"{synchronous}{turn}.db"
    with TrajectoryStore(path, synchronous="off" if path is None else synchronous) as store:
        names = [f"{number}.0" for number in range(deltas)]
        store.begin("replica-0", 0, [Assignment(name, 0, (1, 2, 3)) for name in names])
        offset, spent = 0, 0.0
        while spent < seconds:
            batch = [PartialDelta(name, offset, 0, ids, values) for name in names]
            start = time.perf_counter()
            if store.append("replica-0", batch):
                raise SystemExit("a delta was refused")
            spent += time.perf_counter() - start
            offset += tokens
    return offset / tokens * deltas / spent


def file_rate(folder: Path, synchronous: str, deltas: int, tokens: int, seconds: float, turn: int) -> float:
    """Deltas a second into a plain file."""
    values = array("d", [-0.5]) * tokens
    ids = array("I", [7]) * tokens
    calls, spent = 0, 0.0
    with (folder / f"{synchronous}{turn}.log").open("wb", buffering=0) as file:
        while spent < seconds:
            start = time.perf_counter()
            file.write(b"".join(ids.tobytes() + values.tobytes() for _ in range(deltas)))
            if synchronous == "full":
                os.fdatasync(file.fileno())
            spent += time.perf_counter() - start
            calls += 1
    return calls * deltas / spent


def main() -> None:
    parser = argparse.ArgumentParser(description="Appends a second into the trajectory store.")
    parser.add_argument("--deltas", type=int, default=128, help="deltas in a call")
    parser.add_argument("--tokens", type=int, default=16, help="tokens in a delta")
    parser.add_argument("--seconds", type=float, default=0.5, help="of writing in each turn")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    modes = ("memory", "off", "normal", "full")
    rates: dict[str, list[float]] = {f"{what} {mode}": [] for mode in modes for what in ("store", "file")}
    with tempfile.TemporaryDirectory() as name:
        for turn in range(TURNS):
            for mode in modes:
                arguments = (Path(name), mode, options.deltas, options.tokens, options.seconds, turn)
                rates[f"store {mode}"].append(store_rate(*arguments))
                rates[f"file {mode}"].append(file_rate(*arguments))
    print(f"{options.deltas} deltas of {options.tokens} tokens in a call; deltas a second")
    print(f"{'durability':<10} {'store':>10} {'plain file':>11} {'tokens/s':>11} {'ms a call':>10}")
    rows = []
    for mode in modes:
        store, plain = (statistics.median(rates[f"{what} {mode}"]) for what in ("store", "file"))
        rows.append({"durability": mode, "store_deltas_per_s": store, "file_deltas_per_s": plain})
        call_ms = options.deltas / store * 1e3
        print(f"{mode:<10} {store:>10,.0f} {plain:>11,.0f} {store * options.tokens:>11,.0f} {call_ms:>10.2f}")
    if options.json:
        report = {"benchmark": "trajstore", "deltas": options.deltas, "tokens": options.tokens, "rows": rows}
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
