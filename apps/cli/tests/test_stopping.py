"""Ctrl-C, SIGTERM and a terminal that closes: a line at once, an orderly end, and at a second one an end at once."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from tailrace.cli.runs.stopping import Stopping

PROGRAM = """
import os, sys, time
from tailrace.cli.runs.stopping import Stopping

def say(text):
    os.write(1, f"{text}\\n".encode())

with Stopping(say, "go on with: x", stop=lambda: say("closing")) as stopping:
    say("ready")
    stopping.told.wait(60)
    time.sleep(60 if sys.argv[1] == "slow" else 0)
    say("closed")
"""


@pytest.fixture
def program():
    """Starts the program, which stops slowly or quickly."""
    started = []

    def start(how):
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, how],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        started.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_answered_at_once_and_ends_the_run_in_order(program, number):
    process = program("quickly")
    process.send_signal(number)
    told = process.communicate(timeout=30)[0].splitlines()
    assert {line for line in told if not line.startswith("tailrace: ")} == {"closing", "closed"}
    (said,) = [line for line in told if line.startswith("tailrace: ")]
    assert said.startswith(f"tailrace: stopping ({number.name}): the log is safe")
    assert "press Ctrl-C again" in said
    assert process.returncode == 0


def test_a_second_signal_ends_it_where_it_is(program):
    process = program("slow")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline().startswith("tailrace: stopping (SIGTERM)")
    assert process.stdout.readline() == "closing\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "tailrace: ended at once; go on with: x\n"
    assert process.returncode == 130


def test_a_terminal_that_is_gone_keeps_nobody_from_stopping():
    def say(text):
        raise OSError(5, "Input/output error")

    stopped = threading.Event()
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup pytest` ignores it, and what is ignored stays so
    try:
        with Stopping(say, "", stop=stopped.set) as stopping:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stopped.wait(30)
            assert stopping.told.is_set()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_was_before_is_restored_and_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN), signal.getsignal(signal.SIGTERM)
    try:
        stopped = threading.Event()
        with Stopping(print, "", stop=stopped.set):
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
            assert stopped.wait(30)
        assert signal.getsignal(signal.SIGTERM) is before[1]
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGINT, before[0])
