"""Run simulated schedules again: ``python replay.py SEED [SEED ...]`` prints each with its trace."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.run import run

if __name__ == "__main__":
    outcomes = [run(int(seed)) for seed in sys.argv[1:]]
    for outcome in outcomes:
        print(outcome.report())
    sys.exit(any(outcome.wrong for outcome in outcomes))
