"""Verifiers that misbehave, for the scorer's tests. They run in worker processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def sleeps_for_ever(response, answer, metadata):
    while True:
        time.sleep(3600)


def sleeps_with_a_child(response, answer, metadata):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    Path(metadata["pid_file"]).write_text(str(child.pid))
    while True:
        time.sleep(3600)


def spins(response, answer, metadata):
    while True:
        pass


def raises(response, answer, metadata):
    raise ZeroDivisionError("the verifier's own mistake")


def raises_what_it_read(response, answer, metadata):
    raise ValueError(response)


def dies(response, answer, metadata):
    os._exit(7)


def kills_its_process(response, answer, metadata):
    with Path(metadata["seen"]).open("a") as seen:
        seen.write("b")
    os.kill(os.getpid(), signal.SIGKILL)


def not_a_number(response, answer, metadata):
    return float("nan")


def chatters(response, answer, metadata):
    print("a verifier may print", flush=True)
    os.write(1, b"even past Python\n")
    return 1.0


def chatters_much(response, answer, metadata):
    for _ in range(3):
        print("x" * 100_000, flush=True)
    return 1.0


def says_why_and_dies(response, answer, metadata):
    print("first\nout of luck\n", flush=True)
    os._exit(7)


def says_why_and_hangs(response, answer, metadata):
    print("waiting for a server", file=sys.stderr, flush=True)
    time.sleep(3600)


def length(response, answer, metadata):
    return float(len(response))


def returns(response, answer, metadata):
    return eval(response)


def over_budget(response, answer, metadata):
    return float(10 ** (10**9) > 0)  # a long computation in C


def within_budget(response, answer, metadata):
    return 1.0


over_budget.cpu_budget_s = within_budget.cpu_budget_s = 0.2
