"""The directory of a Ray cluster that a run started on this machine: who made it, and whether anything of it lives."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tailrace.paramserver.machine.liveness import ProcessId

OWNER = "tailrace.json"
_TRIES = 20  # processes that end write into it until then
_RETRY_S = 0.1


def claim(session: Path) -> None:
    """Note that this process started the cluster."""
    (session / OWNER).write_text(json.dumps(asdict(ProcessId.current())))


def remove(session: Path) -> None:
    """Remove the directory of a cluster that has ended. A part that cannot be removed stays."""
    latest = session.parent / "session_latest"
    if latest.is_symlink() and latest.readlink() == session:
        latest.unlink(missing_ok=True)
    for _ in range(_TRIES):
        shutil.rmtree(session, ignore_errors=True)
        if not session.exists():
            return
        time.sleep(_RETRY_S)


def left_sessions() -> list[Path]:
    """Directories of clusters that a run started, whose driver is dead and of which no process lives."""
    root = Path(os.environ.get("RAY_TMPDIR") or "/tmp", "ray")  # noqa: S108 - where Ray puts them
    left = [path.parent for path in sorted(root.glob(f"session_*/{OWNER}")) if not _driver_lives(path)]
    if not left:
        return []
    commands = list(_commands())
    return [session for session in left if not any(session.name in command for command in commands)]


def _driver_lives(owner: Path) -> bool:
    try:
        found = json.loads(owner.read_text())
        return ProcessId(found["pid"], found["started"], found["namespace"]).alive()
    except (OSError, ValueError, KeyError, TypeError):
        return False  # the processes' command lines decide


def _commands() -> Iterator[str]:
    """The command lines of all processes. Those of Ray name their session."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().decode(errors="replace")
        except OSError:  # it ended meanwhile, or belongs to someone else
            continue
