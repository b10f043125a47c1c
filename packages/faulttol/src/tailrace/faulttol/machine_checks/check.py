"""What a check of a machine is. Each runs in a process of its own, with a deadline: a broken disk hangs whoever asks it."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tailrace.contracts import plugins
from tailrace.faulttol.errors import FaulttolError
from tailrace.processes import Child, ChildEndedError, ChildTimeoutError, LineError
from tailrace.processes.child import last_line


class UnfitError(FaulttolError):
    """A machine must not be used again. The message says what was found and what was expected."""


class MachineCheck(Protocol):
    """One check of the machine on which it runs. Entry-point group ``tailrace.machine_check``: a class of this protocol.

    Its arguments are its limits, each with a default.
    """

    def run(self, directory: Path) -> str:
        """Check the machine.

        Args:
            directory: a directory on the disk that the run uses. What the check writes there, it removes.

        Returns:
            What was found, in words.

        Raises:
            UnfitError: the machine is unfit.
        """
        ...


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check said.

    Args:
        check: its name.
        fit: whether the machine passed.
        found: what was found; for a machine that did not pass, also what was expected.
        seconds: how long it took.
    """

    check: str
    fit: bool
    found: str
    seconds: float


GROUP = "tailrace.machine_check"
_PROGRAM = "tailrace.faulttol.machine_checks"  # __main__.py


def check_machine(directory: Path, names: Sequence[str], *, timeout_s: float = 60.0) -> Iterator[Finding]:
    """Check this machine, one check after the other.

    Args:
        directory: a directory on the disk that the run uses.
        names: the checks, by the names of their plugins.
        timeout_s: deadline for each check in seconds. One that misses it has found the machine unfit.

    Raises:
        PluginError: no plugin has one of the names.
    """
    for name in names:
        plugins.reference(GROUP, name)
    for name in names:
        began_s = time.monotonic()
        fit, found = _run(directory, name, timeout_s)
        yield Finding(name, fit, found, time.monotonic() - began_s)


def _run(directory: Path, name: str, timeout_s: float) -> tuple[bool, str]:
    deadline = time.monotonic() + timeout_s
    with tempfile.TemporaryFile() as errors:
        child = Child([sys.executable, "-m", _PROGRAM, str(directory), name], stdout=subprocess.PIPE, stderr=errors)
        answer: dict[str, Any] = {}
        try:
            with contextlib.suppress(ChildEndedError, LineError):
                answer = child.receive(timeout_s)
            status = child.wait(max(0.0, deadline - time.monotonic()))
        except ChildTimeoutError:
            status = None
        finally:
            child.kill(reap_s=0.0)  # one that hangs in the kernel does not end: it is not waited for
        if status is None:
            return False, f"did not end within {timeout_s:.0f} s, expected it to"
        match answer:
            case {"fit": bool(fit), "found": str(found)}:
                return fit, found
        return False, f"ended with {status} ({last_line(errors) or 'no message'}), expected an answer"
