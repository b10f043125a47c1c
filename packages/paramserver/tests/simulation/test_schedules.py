"""Random schedules in virtual time, more of them with --deep. A failure names the command that repeats it.

TAILRACE_SCHEDULES sets how many.
"""

import collections
import os
import subprocess
import sys
from pathlib import Path

import pytest
from simulation.run import run

GIVEN = int(os.environ.get("TAILRACE_SCHEDULES", "0"))


@pytest.mark.timeout(320 + GIVEN)
def test_nothing_wrong_is_shown_and_nothing_hangs(deep):
    schedules = GIVEN or (200 if deep else 30)
    failed, faults, read = {}, collections.Counter(), 0
    for seed in range(schedules):
        outcome = run(seed)
        faults.update(fault.rstrip("0123456789")[:9] for fault in outcome.faults)
        read += outcome.versions_read
        if outcome.wrong:
            failed[seed] = outcome.report()
    assert not failed, f"{len(failed)} of {schedules} failed: {list(failed)}\n{next(iter(failed.values()))}"
    # The schedules must reach what they are there for.
    assert read > schedules
    assert len(faults) >= 6, faults


def test_the_same_seed_is_the_same_run():
    for seed in (3, 10, 27):
        first, second = run(seed), run(seed)
        assert (first.digest, first.log) == (second.digest, second.log)
        assert first.log


def test_the_same_seed_is_the_same_run_in_another_process():
    replay = str(Path(__file__).with_name("replay.py"))
    outputs = {
        subprocess.run(
            [sys.executable, replay, "5", "18"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 500
