"""The scorer is killed in the middle of scores of programs: none is a false zero, and nothing of it is left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
SCORER = """
import json, sys
from tailrace.contracts import Activity, Score, Scored
from tailrace.pipeline.roles.scorer import ScorerRole, ScorerSettings
from tailrace.runtime.executor.seam import MemberStart
from tailrace.reward import Kind, ScoreItem

TESTS = {"entry_point": "f", "tests": [{"args": [n], "expected": 2 * n} for n in range(3)]}


class Data:
    def call(self, method, argument, timeout_s):
        if method == "to_score":
            return [ScoreItem(name, program(name), "", "code", TESTS, "double") for name in argument]


def program(name):
    return f"def f(x):\\n    return {2 if int(name[1:]) % 3 else 3} * x\\n"


role = ScorerRole(ScorerSettings(["code"]), MemberStart(store=Data()))
names = sys.argv[1:]
role.submit([Score(1, tuple(names))])
left = len(names)
while left:
    for event in role.events(1.0):
        if isinstance(event, Activity):
            assert event == Activity("scorer", "0", role._scheduler.sandbox)
            continue
        assert isinstance(event, Scored), event
        left -= 1
        sandbox = role._scheduler._pools[Kind.CODE].backends[0]._sandbox
        print(json.dumps([event.trajectory, event.reward, sandbox.pids]), flush=True)
role.close()
"""


def scored(names, kill_after=None):
    """Rewards by trajectory, and the sandbox's processes; the scorer is killed after so many."""
    rewards, pids = {}, set()
    scorer = subprocess.Popen([sys.executable, "-c", SCORER, *names], stdout=subprocess.PIPE, text=True)
    for line in scorer.stdout:
        name, reward, supervisors = json.loads(line)
        assert name not in rewards
        rewards[name] = reward
        pids.update(supervisors)
        if len(rewards) == kill_after:
            os.kill(scorer.pid, signal.SIGKILL)
    status = scorer.wait(60)
    assert status == (0 if kill_after is None else -signal.SIGKILL)
    return rewards, pids


@pytest.mark.deep
def test_a_scorer_is_killed_in_the_middle_of_many_scores(deep):
    names = [f"t{number}" for number in range(200 if deep else 80)]
    first, pids = scored(names, kill_after=len(names) // 3)
    assert len(names) // 3 <= len(first) < len(names)  # some were told before it died
    rest, more = scored([name for name in names if name not in first])
    assert not first.keys() & rest.keys()
    assert first | rest == {name: float(int(name[1:]) % 3 > 0) for name in names}
    assert pids
    deadline = time.monotonic() + 30
    while left := [pid for pid in pids | more if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"sandbox processes {left} outlived the scorer"
        time.sleep(0.05)
