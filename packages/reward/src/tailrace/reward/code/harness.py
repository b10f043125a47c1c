"""Runs inside the sandbox, as text: it calls a program with the inputs of each test and writes the values out.

It knows no expected value, so a program that takes it over can only write values, which it must compute first. Each test runs
in a process of its own, with its CPU time limited by a timer; a program that resets the timer meets the sandbox's own limit.
Standard library only; it must run under ``python -I -S``.

stdin: ``{"program", "entry_point", "inputs", "cpu_s", "wall_s", "reply_bytes"}``
stdout: for each test that ran, a line ``{"value": ...}``, ``{"error": status}`` or ``{"over": "cpu" | "wall" | "output"}``,
each with ``cpu_s``. It ends after a test that is over its time.
"""

import io
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any


class Nowhere(io.RawIOBase):
    """Takes what a function prints."""

    def writable(self) -> bool:
        return True

    def write(self, text: Any) -> int:
        return len(text)


def value_of(asked: dict[str, Any], given: Any, out: int) -> None:
    """Run one test. Writes its value to a pipe."""
    for stream in (1, 2):
        os.close(stream)
    sys.stdout = sys.stderr = io.TextIOWrapper(Nowhere())  # a sandbox need not have /dev/null
    space: dict[str, Any] = {"__name__": "__main__" if asked["entry_point"] is None else "program"}
    if asked["entry_point"] is None:
        with open("stdin", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(given)
        os.dup2(os.open("stdin", os.O_RDONLY), 0)
        os.dup2(out, 1)
        sys.stdin, sys.stdout = open(0, encoding="utf-8"), open(1, "w", encoding="utf-8")  # noqa: SIM115
        try:
            exec(compile(asked["program"], "program", "exec"), space)  # noqa: S102 (inside the sandbox)
        except SystemExit as left:
            if left.code not in (None, 0):
                raise
        finally:
            sys.stdout.flush()
        return
    exec(compile(asked["program"], "program", "exec"), space)  # noqa: S102 (inside the sandbox)
    value = json.dumps(space[asked["entry_point"]](*given)).encode()
    while value:
        value = value[os.write(out, value) :]


def child(asked: dict[str, Any], given: Any, out: int) -> None:
    """The process of one test. Never returns."""
    status = 1
    try:
        value_of(asked, given, out)
        status = 0
    finally:  # whatever the program raises, the process must not go on as a second harness
        os._exit(status)


def test(asked: dict[str, Any], given: Any) -> dict[str, Any]:
    """The outcome of one test."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        signal.setitimer(signal.ITIMER_PROF, asked["cpu_s"])
        child(asked, given, writing)
    os.close(writing)
    deadline, parts, size, over = time.monotonic() + asked["wall_s"], [], 0, None
    while over is None:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(reading, 1 << 16) if ready else b""
        if not ready:
            over = "wall"
        elif not part:
            break
        parts.append(part)
        size += len(part)
        if size > asked["reply_bytes"]:
            over = "output"
    os.close(reading)
    while True:  # it may have closed the pipe and live on
        ended, status, used = os.wait4(pid, 0 if over is not None and killed(pid) else os.WNOHANG)
        if ended:
            break
        if time.monotonic() > deadline:
            over = "wall"
        time.sleep(0.001)
    cpu_s = used.ru_utime + used.ru_stime
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGPROF:
        over = "cpu"
    if over is not None:
        return {"over": over, "cpu_s": cpu_s}
    if status != 0:
        return {"error": status, "cpu_s": cpu_s}
    return {"value": b"".join(parts).decode("utf-8", "replace"), "cpu_s": cpu_s}


def killed(pid: int) -> bool:
    """Kill a test's process."""
    os.kill(pid, signal.SIGKILL)
    return True


def main() -> None:
    """Run the tests that stdin asks for."""
    asked = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for given in asked["inputs"]:
        found = test(asked, given)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        if "over" in found:
            return


main()
