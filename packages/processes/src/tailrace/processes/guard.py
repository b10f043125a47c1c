"""Runs a program that knows nothing of its owner, and ends it when the owner is gone.

    Child(guarded(["server", "--port", "8000"]), group=True)

owner ──► guard (leads the group) ──► program ──► what it starts
            │ looks whether the owner is      └── the kernel kills it with the guard
            └ SIGTERM, or the owner gone: SIGTERM to the program, after `GRACE_S` SIGKILL to the group

A program that is started by a short-lived thread could not ask the kernel itself: to the kernel, that thread is the parent.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from tailrace.processes.child import kill_group
from tailrace.processes.death import Ending, die_with_parent, wait_for_parent

GRACE_S = 5.0
"""Seconds that a program has to end in order."""


def guarded(program: Sequence[str]) -> list[str]:
    """The command that runs a program under a guard of this process; for a `Child` that leads a group.

    The guard's exit status is the program's, as a shell tells it: 128 and the signal that ended it.
    """
    return [sys.executable, "-m", "tailrace.processes.guard", str(os.getpid()), *program]


def main(arguments: Sequence[str]) -> int:
    """Guard a program.

    Args:
        arguments: the owner's process id, the program and its arguments.
    """
    owner, stop = int(arguments[0]), Ending()
    signal.signal(signal.SIGTERM, stop.ask)
    program = subprocess.Popen(  # noqa: S603 - what to run is the owner's matter
        list(arguments[1:]), stdin=subprocess.DEVNULL, preexec_fn=die_with_parent
    )

    def reap() -> None:
        program.wait()
        stop.ask()

    threading.Thread(target=reap, name="program", daemon=True).start()
    wait_for_parent(owner, stop)
    if program.poll() is None:
        program.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            program.wait(GRACE_S)
    if (program.poll() is None or os.getppid() != owner) and os.getpgrp() == os.getpid():
        kill_group(os.getpid())
    program.kill()
    status = program.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
