"""The private folder of a Ray cluster that a run started on this machine: who made it, and whether anything of it lives.

tailrace-ray-*           0700, the run's user's: nobody else gets at what is below, whatever modes Ray gives it
├── tailrace.json        who made it
└── r/session_...        Ray's: sockets, logs
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from tailrace.processes import ProcessId

OWNER = "tailrace.json"
_PREFIX = "tailrace-ray-"
_SHORT = "/tmp"  # noqa: S108 - a path that leaves a socket's room to be named
_SOCKET_BYTES = 107  # a Unix socket's path is no longer
_BELOW = len(
    "/r/session_2026-01-31_23-59-59_999999_4194304/sockets/plasma_store.12"
)  # Ray's longest socket in a folder
_RANDOM = 8  # characters that `mkdtemp` adds
_TRIES = 20  # processes that end write into it until then
_RETRY_S = 0.1


def make() -> Path:
    """Make a folder for the cluster that this process starts: in RAY_TMPDIR or TMPDIR, or in /tmp if those are too long.

    Raises:
        OSError: it cannot be made there.
    """
    room = _SOCKET_BYTES - _BELOW - _RANDOM - len(f"/{_PREFIX}")
    base = next((base for base in _bases() if len(os.fsencode(base)) <= room), _SHORT)
    Path(base).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    (folder / OWNER).write_text(json.dumps(asdict(ProcessId.current())))
    return folder


def temporary(folder: Path) -> str:
    """What Ray takes for its own in a folder. It lets everybody write there, so it is not the folder itself."""
    return str(folder / "r")


def seal(session: Path) -> None:
    """Take the rights that each of Ray's processes gives to everybody, as it starts, from a session's directories."""
    for path in (session.parent, session, *session.iterdir()):
        with suppress(FileNotFoundError):  # one of Ray's processes has removed it meanwhile
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) != stat.S_IRWXU:
                path.chmod(stat.S_IRWXU)


def remove(folder: Path) -> None:
    """Remove the folder of a cluster that has ended. A part that cannot be removed stays."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_RETRY_S)


def left_folders() -> list[Path]:
    """Folders of this user's clusters that a run started, whose maker is dead and of which no process lives."""
    found = (path for base in dict.fromkeys(_bases()) for path in sorted(Path(base).glob(f"{_PREFIX}*")))
    left = [path for path in found if _own(path) and _maker_died(path / OWNER)]
    if not left:
        return []
    commands = list(_commands())
    return [folder for folder in left if not any(folder.name in command for command in commands)]


def _bases() -> list[str]:
    return [base for base in (os.environ.get("RAY_TMPDIR"), tempfile.gettempdir(), _SHORT) if base]


def _own(folder: Path) -> bool:
    """Whether it is a directory of this user: in a shared one anybody may give something that name."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False  # it was removed meanwhile
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()


def _maker_died(owner: Path) -> bool:
    try:
        found = json.loads(owner.read_text())
        return not ProcessId(found["pid"], found["started"], found["namespace"]).alive()
    except (OSError, ValueError, KeyError, TypeError):
        return False  # it is being made


def _commands() -> Iterator[str]:
    """The command lines of all processes. Those of Ray name their session."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().decode(errors="replace")
        except OSError:  # it ended meanwhile, or belongs to someone else
            continue


@contextmanager
def own_signals() -> Iterator[None]:
    """Keep the driver's signal handlers. Ray replaces them by its own, which abort the driver without cleaning up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
