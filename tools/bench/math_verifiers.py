"""How verifiers judge the corpus of answer pairs, and what it costs: ours beside math-verify alone.

    uv run python tools/bench/math_verifiers.py [--json FILE]

math-verify alone gets the same extracted answer as ours, in dollar signs, and its own timeouts of 2 s.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tailrace.reward import ScoringError, load_verifier
from tailrace.reward.extraction import final_answer

CORPUS = Path(__file__).parents[2] / "packages/reward/tests/math_pairs.jsonl"
COLUMNS = ("right", "false positives", "false negatives", "not judged")


def math_verify_alone(response: str, answer: str, metadata: Mapping[str, Any]) -> float:  # noqa: ARG001
    from math_verify import parse, verify

    found = final_answer(response)
    if found is None:
        return 0.0
    gold, said = (parse(f"${text}$", parsing_timeout=2) for text in (answer, found))
    return float(verify(gold, said, timeout_seconds=2))


def judged(verifier: Callable[..., Any], pairs: list[dict[str, Any]]) -> dict[str, float]:
    found: Counter[str] = Counter()
    times_s = []
    for pair in pairs:
        before = time.process_time()
        try:
            right = verifier(pair["response"], pair["reference"], {}) == 1.0
            found["right" if right == pair["right"] else "false positives" if right else "false negatives"] += 1
        except ScoringError:
            found["not judged"] += 1
        times_s.append(time.process_time() - before)
    cpu = {"mean_cpu_s": sum(times_s) / len(times_s), "most_cpu_s": max(times_s)}
    return {column: found[column] for column in COLUMNS} | cpu


def main() -> None:
    parser = argparse.ArgumentParser(description="How verifiers judge the corpus of answer pairs.")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    pairs = [json.loads(line) for line in CORPUS.read_text("utf-8").splitlines()]
    start = time.process_time()
    ours = load_verifier("math")
    figures: dict[str, Any] = {"pairs": len(pairs), "import_cpu_s": time.process_time() - start}
    print(f"{len(pairs)} pairs; importing `math` takes {figures['import_cpu_s']:.1f} s of CPU")
    rows = {"exact": load_verifier("exact"), "numeric": load_verifier("numeric"), "math": ours}
    for name, verifier in (rows | {"math-verify alone": math_verify_alone}).items():
        figures[name] = row = judged(verifier, pairs)
        counts = ", ".join(f"{row[column]:.0f} {column}" for column in COLUMNS)
        print(f"{name:18} {counts}; CPU {1e3 * row['mean_cpu_s']:.2f} ms, at most {row['most_cpu_s']:.2f} s")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
