"""Why an actor's process ended, in one line: its own last words if it left some, otherwise what Ray knows."""

from __future__ import annotations

import os
import re
from pathlib import Path

_LAST_WORDS = re.compile(r"^(Fatal Python error: .+|(?:\w+\.)*\w*(?:Error|Exception): .+)$", re.MULTILINE)
_DETAIL = re.compile(r"Worker exit detail: (.+)")
_SILENT = "End of file"  # how Ray describes a connection whose other end is just gone
_READ_BYTES = 1 << 16


def cause_of_death(message: str, logs: Path | None, pid: int | None) -> str:
    """The cause in one line.

    Args:
        message: the message of Ray's error.
        logs: the directory of the cluster's logs, if it is on this machine.
        pid: the actor's process, if it is known.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message)
    said = _last_words(logs, pid)
    if said:
        return said
    detail = _DETAIL.search(plain)
    if detail is not None:
        if _SILENT in detail[1]:
            of = "" if pid is None else f" {pid}"
            return f"its process{of} was killed from outside (SIGKILL), ran out of memory, or ended without a word"
        return detail[1].strip().removeprefix("Worker exits unexpectedly. ").rstrip(".")
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    if not lines:
        return "no reason given"
    # the last line of a traceback, otherwise the first
    return lines[-1] if any("Traceback" in line or "Error" in line for line in lines[1:]) else lines[0]


def _last_words(logs: Path | None, pid: int | None) -> str:
    """The last line of an error in what the process wrote on stderr; empty if there is none."""
    if logs is None or pid is None:
        return ""
    for path in logs.glob(f"worker-*-{pid}.err"):
        try:
            with path.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _READ_BYTES))
                found = _LAST_WORDS.findall(file.read().decode(errors="replace"))
        except OSError:
            continue
        if found:
            return str(found[-1]).strip()
    return ""
