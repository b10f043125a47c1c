"""A group's driver and coordinator in virtual time: relays, publishers and readers under kills, cuts and damage.

What was wrong can be seen again with its seed; the failure message has the schedule and the trace.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from simulation.run import run_schedule
from simulation.schedule import draw

SEEDS = int(os.environ.get("TAILRACE_GROUP_SEEDS", "30"))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_faults(seed):
    outcome = run_schedule(replace(draw(seed), grouped=True))
    assert not outcome.wrong, outcome.report()


def test_the_same_seed_gives_the_same_run():
    schedule = replace(draw(5), grouped=True)
    assert run_schedule(schedule).digest == run_schedule(schedule).digest
