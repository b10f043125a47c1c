"""A program that knows nothing of its owner ends with it, also one that an ended thread started, and with what it started."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tailrace.processes import Child
from tailrace.processes.guard import guarded

from .children import DEADLINE_S, WITH_A_CHILD, gone, python, wait_until

OWNER = """
import json, os, subprocess, sys, time
from tailrace.processes import Child
from tailrace.processes.guard import guarded
child = Child(guarded([sys.executable, "-c", sys.argv[1]]), group=True, stdout=subprocess.PIPE)
print(json.dumps({**child.receive(60), "guard": child.pid}), flush=True)
time.sleep(600)
"""


def start(program):
    return Child(guarded(python(program)), group=True, stdout=subprocess.PIPE)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_owner_and_all_that_it_started(how):
    owner = Child(python(OWNER, WITH_A_CHILD), stdout=subprocess.PIPE)
    said = owner.receive(DEADLINE_S)
    try:
        assert not any(map(gone, said.values()))
        os.kill(owner.pid, how)
        owner.wait(DEADLINE_S)
        for name, pid in said.items():
            wait_until(lambda pid=pid: gone(pid), f"the {name} process of the killed owner ends")
    finally:
        owner.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has PR_SET_PDEATHSIG")
def test_it_ends_with_its_killed_guard():
    child = start(WITH_A_CHILD)
    own = child.receive(DEADLINE_S)["own"]
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: gone(own), "the program of the killed guard ends")
    child.kill()


def test_the_end_of_the_thread_that_started_it_is_not_its_own():
    children = []
    starter = threading.Thread(target=lambda: children.append(start(WITH_A_CHILD)))
    starter.start()
    starter.join()
    said = children[0].receive(DEADLINE_S)
    assert children[0].wait(1.5) is None
    assert children[0].end(DEADLINE_S) == 128 + signal.SIGTERM
    wait_until(lambda: all(map(gone, said.values())), "the program and its child end")


@pytest.mark.parametrize(
    ("program", "status"), [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 128 + 9), ("pass", 0)]
)
def test_its_status_is_told(program, status):
    child = start(program)
    assert child.wait(DEADLINE_S) == status
    child.kill()


def test_one_that_hears_no_signal_is_killed():
    deaf = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WITH_A_CHILD
    child = start(deaf)
    said = child.receive(DEADLINE_S)
    child.end(DEADLINE_S)
    for pid in said.values():
        wait_until(lambda pid=pid: gone(pid), "a deaf program ends")
