"""The checks can fail: each planted bug is found within some seeds, and its report says how to see it again."""

import pytest
from simulation.planted import PLANTED
from simulation.run import run

SEEDS = 150


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug):
    with PLANTED[bug]():
        for seed in range(SEEDS):
            outcome = run(seed)
            if outcome.wrong:
                break
    assert outcome.wrong, f"{bug} was not found in {SEEDS} seeds"
    assert f"replay.py {seed}" in outcome.report()
