"""A thousand right programs on busy cores: all earn their reward, and none is over its budget."""

import asyncio
import os
import subprocess
import sys

import pytest

from tailrace.reward import CodeSettings, RewardScheduler, ScoreItem
from tailrace.reward.tasks import get_task

COUNT = 1000


@pytest.fixture
def busy_cores():
    """Two processes for each core that do nothing but compute."""
    spin = [sys.executable, "-c", "while True: pass"]
    spinning = [subprocess.Popen(spin) for _ in range(2 * len(os.sched_getaffinity(0)))]
    yield
    for process in spinning:
        process.kill()
        process.wait()


@pytest.mark.deep
@pytest.mark.timeout(1200)
def test_a_thousand_honest_programs_on_busy_cores(busy_cores):
    rows = get_task("programs").generate("train", COUNT, 11)
    items = [ScoreItem(str(n), row["answer"], "", "code", row["metadata"], row["prompt"]) for n, row in enumerate(rows)]

    async def score():
        async with RewardScheduler(code=CodeSettings(workers=4, recheck_share=0)) as scheduler:
            return [outcome async for outcome in scheduler.score(items)]

    outcomes = asyncio.run(score())
    assert len(outcomes) == COUNT
    assert [outcome for outcome in outcomes if getattr(outcome, "reward", None) != 1.0] == []
