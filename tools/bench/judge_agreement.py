"""A small judge, fine-tuned on the spot, beside the exact verifier and the answer that is right most often, on several seeds.

    uv run python tools/bench/judge_agreement.py [--seeds N] [--task long-chain-sum --steps 600] [--json FILE]

Each seed has its own training data and weights, as `tailrace judge fit --seed` makes them; all are measured on the same
responses to held-out questions.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from tailrace.cli.components.judge import FitOptions, fit_judge


def main() -> None:
    parser = argparse.ArgumentParser(description="A small judge's agreement with the exact verifier.")
    parser.add_argument("--task", default="short-chain-sum")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = [
            fit_judge(FitOptions(Path(work) / f"judge-{seed}", options.task, seed, options.steps), None)
            for seed in range(options.seeds)
        ]
    shares = [row["agreement"] for row in found]
    spread = f"{min(shares):.3f} to {max(shares):.3f}, {len(found)} seeds"
    print(f"{options.task}: majority {found[0]['majority']:.3f}, judge {statistics.fmean(shares):.3f} ({spread})")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
