"""Real processes, really killed and really hung, noticed by the monitor."""

import os
import selectors
import subprocess
import sys
import time

import pytest

from tailrace.faulttol import FaultKind, HeartbeatMonitor, Silence, strike

DEADLINE_S = 60.0

BEATS = """
import sys, time
while True:
    print("beat", flush=True)
    time.sleep(0.02)
"""


def watch(monitor, process, until):
    """Feed the process's beats to the monitor until `until(news)` or the deadline."""
    os.set_blocking(process.stdout.fileno(), False)
    waiting = selectors.DefaultSelector()
    waiting.register(process.stdout, selectors.EVENT_READ)
    news, closed, end = [], False, time.monotonic() + DEADLINE_S
    while not until(news):
        assert time.monotonic() < end, f"no such news within {DEADLINE_S} s: {news}"
        if not closed and waiting.select(timeout=0.05):
            closed = not process.stdout.read(65536)
            if not closed:
                monitor.beat("child", time.monotonic())
        elif closed:
            time.sleep(0.05)
        news += monitor.check(time.monotonic())
    waiting.close()
    return news


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", BEATS], stdout=subprocess.PIPE)
    process.stdout.readline()
    yield process
    process.kill()
    process.wait(timeout=DEADLINE_S)
    process.stdout.close()


def test_a_killed_process_stays_silent(child):
    monitor = HeartbeatMonitor(after_s=0.5)
    monitor.expect("child", time.monotonic())
    assert strike(child.pid, FaultKind.KILL)
    news = watch(monitor, child, lambda news: len(news) >= 2)
    assert {item.member for item in news} == {"child"}
    assert news[1].silent_s >= 1.0
    assert child.wait(timeout=DEADLINE_S) == -9
    assert not strike(child.pid, FaultKind.KILL)


def test_a_hung_process_is_silent_and_heard_again_when_it_goes_on(child):
    monitor = HeartbeatMonitor(after_s=1.0)
    monitor.expect("child", time.monotonic())
    assert strike(child.pid, FaultKind.HANG)
    news = watch(monitor, child, lambda news: bool(news))
    assert news[0].silent_s >= 1.0
    assert child.poll() is None
    os.kill(child.pid, 18)  # SIGCONT
    end = time.monotonic() + DEADLINE_S
    while not child.stdout.read(65536):
        assert time.monotonic() < end, "the process did not go on"
        time.sleep(0.01)
    assert monitor.beat("child", time.monotonic())
    assert monitor.check(time.monotonic()) == [Silence("child", 0.0)]


@pytest.mark.parametrize("pid", [0, -1, 1])
def test_process_groups_and_init_are_spared(pid):
    with pytest.raises(ValueError, match="expected one above 1"):
        strike(pid, FaultKind.KILL)


def test_no_signal_stalls_an_engine(child):
    with pytest.raises(ValueError, match="'stall', expected kill or hang"):
        strike(child.pid, FaultKind.STALL)
    assert child.poll() is None
