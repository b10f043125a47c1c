"""Processes that work side by side end with their parent, however it ends, and when nobody wants more of them."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tailrace.fleetsim.run import in_processes

PARENT = """
import sys
sys.path.insert(0, sys.argv[1])
from waiting_work import work
from tailrace.fleetsim.run import in_processes
if __name__ == "__main__":
    for _, pid in in_processes(work, [0.0, 0.0, 600.0, 600.0, 600.0], processes=2):
        print(pid, flush=True)
"""
WORK = """
import os, time
def work(seconds):
    time.sleep(seconds)
    return os.getpid()
"""


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pids, within_s=20.0):
    until = time.monotonic() + within_s
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, pids))


def workers(parent):
    with open(f"/proc/{parent}/task/{parent}/children") as children:  # noqa: PTH123
        return [int(pid) for pid in children.read().split()]


def started(tmp_path):
    """A parent whose two processes are at work."""
    (tmp_path / "waiting_work.py").write_text(WORK)
    (tmp_path / "parent.py").write_text(PARENT)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "parent.py"), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout.readline()
    assert process.stdout.readline()
    time.sleep(0.5)  # they take the next ones
    return process, workers(process.pid)


@pytest.mark.deep
def test_they_die_with_a_parent_that_is_killed(tmp_path):
    for number in (signal.SIGKILL, signal.SIGTERM):
        process, pids = started(tmp_path)
        assert len(pids) >= 2
        process.send_signal(number)
        process.wait(timeout=20)
        assert gone(pids), number


@pytest.mark.deep
def test_ctrl_c_for_all_ends_all_at_once(tmp_path):
    process, pids = started(tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    process.wait(timeout=20)
    assert gone(pids)


def test_whoever_wants_no_more_waits_for_none():
    jobs = [0.0, 600.0, 600.0]
    began = time.monotonic()
    for _ in in_processes(time.sleep, jobs, processes=2):
        break
    assert time.monotonic() - began < 300
