"""A Ray cluster that outlives the controllers of its run: where it is, who keeps it, and how to end it.

    controller ── starts ──► keeper (a process of its own) ──► Ray's processes, the members' too
        └── touches the claim every second; when nobody does for `unclaimed_s`, members stop and the keeper ends the cluster

Another controller finds the cluster through the run directory. Whoever may read its token may run code there, so only the run's
user may. Its processes listen on loopback alone, and what Ray writes lies in a folder that nobody else may enter.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.contracts import Command, Event, need_extra
from tailrace.processes import ProcessId
from tailrace.processes.child import last_line
from tailrace.runtime.errors import DeadlineError, RoleError
from tailrace.runtime.hosts.ray_machines import RayMachine
from tailrace.runtime.hosts.ray_options import environment

if TYPE_CHECKING:
    from tailrace.controller.view import RunView
    from tailrace.runtime.executor.executor import Executor

CLUSTER, CLAIM, TOKEN, LOG = "cluster.json", "claim", "cluster.token", "cluster.log"
START_S = 180.0
_LATE = "timed out during startup"  # Ray gives a node of its own 30 s, which no setting changes
_END_S = 20.0
_LOOK_S = 0.05
_CLAIM_S = 1.0
STUCK_S = 45.0
"""A controller whose loop has not come round for so long claims the run no longer."""


@dataclass(frozen=True, slots=True)
class RayCluster:
    """Where the members of a run live.

    Args:
        run: prefix of the members' names, and Ray's namespace.
        address: of the cluster.
        token: shared secret of the members, for their weights.
        began_at: when the run's clock showed 0, in seconds since the epoch.
        unclaimed_s: after so many seconds without a controller members stop.
        session: Ray's directory on this machine; empty if the cluster is not the run's own.
        keeper: the process that keeps it, as the fields of a `ProcessId`; empty likewise.
        machines: the fields of each `RayMachine`; empty if members stand wherever Ray says.
        patience_s: the longest of the run's deadlines. On a cluster that the run joined, a member hangs if its start, or its
            answer to another member, takes longer: it stops if there is no controller.
    """

    run: str
    address: str
    token: str
    began_at: float
    unclaimed_s: float
    session: str = ""
    keeper: Mapping[str, Any] | None = None
    machines: tuple[Mapping[str, Any], ...] = ()
    patience_s: float = math.inf

    @classmethod
    def read(cls, root: Path) -> RayCluster | None:
        """The cluster of the run in a directory, if it may live; None if there is none.

        That of a directory of which this one is a copy is not its own; one that was moved keeps it.
        """
        try:
            fields = json.loads((root / CLUSTER).read_text())
            noted, here = fields.pop("directory", None), _directory(root)
            if noted is not None and noted[0] != here[0] and noted[1] != here[1]:
                return None
            found = cls(**fields | {"machines": tuple(fields.get("machines", ()))})
        except (OSError, ValueError, TypeError, LookupError):
            return None
        return found if found.process is None or found.process.alive() else None

    def write(self, root: Path) -> None:
        """Note it in the run directory, for this user only."""
        write_private(root / CLUSTER, json.dumps({**asdict(self), "directory": _directory(root)}))

    @property
    def process(self) -> ProcessId | None:
        """The keeper; None if the cluster is not the run's own."""
        return None if self.keeper is None else ProcessId(**self.keeper)

    @property
    def own_machines(self) -> list[RayMachine]:
        """The machines on which members are placed, in order."""
        return [RayMachine(**fields) for fields in self.machines]

    def join(self, root: Path) -> None:
        """Let this process's Ray know the token of the cluster. Call it before Ray is imported."""
        if self.keeper is not None:
            os.environ.update(authentication(root))

    def end(self, *, patience_s: float = _END_S) -> None:
        """End the cluster with all members, and wait for it; nothing if it is not the run's own.

        Args:
            patience_s: seconds until its keeper is killed, with which Ray's processes die.
        """
        keeper = self.process
        if keeper is None:
            return
        if patience_s > 0 and keeper.alive():
            os.kill(keeper.pid, 15)
            until = time.monotonic() + patience_s
            while keeper.alive() and time.monotonic() < until:
                _reap(keeper.pid)
                time.sleep(_LOOK_S)
        keeper.kill()


def start_cluster(root: Path, *, cpus: int, unclaimed_s: float, machines: int = 0, cores: int = 0) -> RayCluster:
    """Start a cluster on this machine for the run in a directory, beside this process.

    Args:
        root: the run directory.
        cpus: logical CPUs of its head.
        unclaimed_s: see `RayCluster`.
        machines: machines beside the head, over which members are placed; 0: all stand at the head.
        cores: see `own_cluster`.

    Raises:
        MissingExtraError: Ray is not installed.
        RoleError: it ended at once.
        DeadlineError: it did not start in time.
    """
    need_extra("tailrace-runtime", "ray", "ray")
    environment(own=True)  # this process joins it, as do others that it starts
    until = time.monotonic() + START_S
    while True:
        try:
            return _start(root, cpus, unclaimed_s, machines, cores, until)
        except RoleError as error:
            if _LATE not in str(error) or time.monotonic() > until:
                raise


def _start(root: Path, cpus: int, unclaimed_s: float, machines: int, cores: int, until: float) -> RayCluster:
    for name in (CLUSTER, CLAIM):
        (root / name).unlink(missing_ok=True)
    (root / CLAIM).touch()
    write_private(root / TOKEN, secrets.token_hex(32))
    arguments = map(str, (root, cpus, unclaimed_s, machines, cores))
    command = [sys.executable, "-m", "tailrace.runtime.hosts.ray_keeper", *arguments]
    with (root / LOG).open("ab") as log:
        keeper = subprocess.Popen(  # noqa: S603 - this package's own module
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C at a terminal is the controller's
            env={**os.environ, **authentication(root)},
        )
    try:
        return _started(root, keeper, until)
    except BaseException:  # an interrupt, too
        keeper.kill()
        raise


def _started(root: Path, keeper: subprocess.Popen[bytes], until: float) -> RayCluster:
    while (found := RayCluster.read(root)) is None:
        if keeper.poll() is not None:
            with (root / LOG).open("rb") as said:
                why = last_line(said) or "no reason given"
            raise RoleError(f"Ray did not start on this machine: {why}; see {root / LOG}")
        if time.monotonic() > until:
            raise DeadlineError(f"waited {START_S:.0f} s for Ray to start on this machine; see {root / LOG}")
        time.sleep(_LOOK_S)
    return found


def name_run() -> tuple[str, str]:
    """A new run's name on a cluster, and the shared secret of its members."""
    return f"tailrace-{secrets.token_hex(6)}", secrets.token_hex(32)


def authentication(root: Path) -> dict[str, str]:
    """Environment variables with which Ray's processes know the cluster's token."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str((root / TOKEN).absolute())}


def _directory(root: Path) -> tuple[str, int]:
    """A directory's path, and its number in the file system. A copy has other ones."""
    return os.path.realpath(root), root.stat().st_ino


def write_private(path: Path, text: str) -> None:
    """Replace a file by one that only this user may read."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    partial.replace(path)


class Claim:
    """Says once a second that this process is the run's controller, until `close`; not while it is stopped.

    It observes the executor: within `looping` it says so only while the loop comes round, so that a controller that stands
    still in a call is replaced as one whose process does.

    Args:
        root: the run directory.
        stuck_s: seconds without a tick after which the loop stands still. Members end themselves some time after.
    """

    def __init__(self, root: Path, stuck_s: float = STUCK_S) -> None:
        self._path, self._over, self._stuck_s = root / CLAIM, threading.Event(), stuck_s
        self._ticked_s = math.inf  # outside of a loop it is not waited for
        self._path.touch()
        self._thread = threading.Thread(target=self._run, name="claim", daemon=True)
        self._thread.start()

    @contextmanager
    def looping(self) -> Iterator[None]:
        """The time in which an executor runs."""
        self._ticked_s = time.monotonic()
        try:
            yield
        finally:
            self._ticked_s = math.inf

    def observe(self, now: float, events: Sequence[Event], commands: Sequence[Command], run: RunView) -> None:
        """Nothing: the loop comes round without events, too."""

    def tick(self, now: float, executor: Executor) -> None:  # noqa: ARG002 - the protocol's arguments
        """The loop came round."""
        if self._ticked_s < math.inf:
            self._ticked_s = time.monotonic()

    def close(self) -> None:
        """Claim it no longer."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_CLAIM_S):
            if time.monotonic() - self._ticked_s > self._stuck_s:
                continue
            with suppress(OSError):  # a file system that fails once may not fail the next time
                if self._path.exists():  # otherwise the cluster was ended, or the run directory is gone
                    self._path.touch()


def claimed_ago_s(root: Path) -> float:
    """Seconds since a controller claimed the run in a directory last; infinite if none ever did."""
    try:
        return max(0.0, time.time() - (root / CLAIM).stat().st_mtime)
    except OSError:
        return float("inf")


class Unclaimed:
    """How long nobody has claimed a run, as its keeper sees it.

    By this process's own time: no run ends since the clock was set forward, or since its machine has slept.

    Args:
        root: the run directory.
    """

    def __init__(self, root: Path) -> None:
        self._path, self._at, self._since_s = root / CLAIM, -1, 0.0

    def seconds(self) -> float:
        """Seconds for which the claim was the same at each call; infinite if there is none."""
        try:
            at = self._path.stat().st_mtime_ns
        except OSError:
            return math.inf
        now = time.monotonic()
        if at != self._at:
            self._at, self._since_s = at, now
        return now - self._since_s


def _reap(pid: int) -> None:
    """A child that has ended is gone only once its parent has asked for it."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return  # another process started it
