"""Runs inside the sandbox, as text: it calls a program with the inputs of each test and writes the values out.

It knows no expected value, so a program that takes it over can only write values, which it must compute first. Each test runs
in a process of its own, with its CPU time limited by a timer; a program that resets the timer meets the sandbox's own limit.
It must run under ``python -I -S``, and imports only what loads at once: `json` and `signal` would take half of the time of a
short program.

stdin: marshalled ``{"program", "entry_point", "inputs", "cpu_s", "idle_s", "wall_s", "reply_bytes"}``
stdout: for each test that ran, a line of JSON: ``{"value": ...}``, ``{"error": status}`` or ``{"over": limit}`` (the limit is
cpu, wall or output), each with ``cpu_s``. It ends after a test that is over a limit.
"""

from __future__ import annotations

import _json
import _signal  # type: ignore[import-not-found]
import io
import marshal
import os
import resource
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LOOK_S = 0.1
WORK_S = 0.005  # less CPU time than this between two looks is waiting


def dumps(value: Any) -> str:
    """As `json.dumps`, whose compiled part this is."""

    def refuse(odd: Any) -> Any:
        raise TypeError(f"{type(odd).__name__} is no JSON value")

    text = _json.encode_basestring_ascii
    return "".join(_json.make_encoder({}, refuse, text, None, ": ", ", ", False, False, True)(value, 0))


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
    value = dumps(space[asked["entry_point"]](*given)).encode()
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
        _signal.setitimer(_signal.ITIMER_PROF, asked["cpu_s"])
        child(asked, given, writing)
    os.close(writing)
    watch, parts, size = Watch(pid, asked), [], 0
    while not watch.over:
        ready, _, _ = select.select([reading], [], [], LOOK_S)
        if not ready:
            watch.look()
            continue
        part = os.read(reading, 1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
        if size > asked["reply_bytes"]:
            watch.over = "output"
    os.close(reading)
    if watch.over:
        os.kill(pid, _signal.SIGKILL)
    pause_s = 0.0005
    while True:  # it may have closed the pipe and live on
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LOOK_S)
        if not watch.over and watch.look():
            os.kill(pid, _signal.SIGKILL)
    cpu_s = used.ru_utime + used.ru_stime
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == _signal.SIGPROF:
        watch.over = "cpu"
    if watch.over:
        return {"over": watch.over, "cpu_s": cpu_s}
    if status != 0:
        return {"error": status, "cpu_s": cpu_s}
    return {"value": b"".join(parts).decode("utf-8", "replace"), "cpu_s": cpu_s}


class Watch:
    """Tells whether a process waits for too long. One that wants to run and gets no core does not wait."""

    def __init__(self, pid: int, asked: dict[str, Any]) -> None:
        self.over = ""
        self.clock = (~pid << 3) | 2  # the process's CPU clock, as clock_getcpuclockid(3) reckons it
        self.asked, self.begun = asked, time.monotonic()
        self.worked, self.used_s = self.begun, 0.0

    def look(self) -> str:
        """Look at its CPU time. Returns what it is over, if anything."""
        now, used_s = time.monotonic(), time.clock_gettime(self.clock)
        if used_s >= self.used_s + WORK_S:
            self.worked, self.used_s = now, used_s
        if now - self.worked > self.asked["idle_s"] or now - self.begun > self.asked["wall_s"]:
            self.over = "wall"
        return self.over


def main() -> None:
    """Run the tests that stdin asks for."""
    asked = marshal.loads(sys.stdin.buffer.read())  # noqa: S302 (it comes from outside the sandbox)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for given in asked["inputs"]:
        found = test(asked, given)
        sys.stdout.write(dumps(found) + "\n")
        sys.stdout.flush()
        if "over" in found:
            return


main()
