"""The process of a member on Ray."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrace.faulttol import LateAnswerError, MemberGoneError
from tailrace.faulttol.elastic import NamedCaller
from tailrace.processes import ProcessId
from tailrace.runtime.errors import DeadlineError
from tailrace.runtime.executor.seam import MemberDeadError
from tailrace.runtime.hosts.mailbox import InjectedCalls, Mailbox
from tailrace.runtime.hosts.mps import mps_state
from tailrace.runtime.hosts.ray_placement import Machine, leave_group

_LOOK_S = 1.0
CLOSE_S = 30.0
"""Seconds that members which stop by themselves have."""


class RoleActor:
    """A process, and the role in it once that is built.

    Args:
        nice: added to its niceness.
        cores: whether the devices that Ray gave it are cores, to which it is pinned; otherwise they are GPUs.
        unclaimed_s: the role is closed and the process ends when nobody has called it for so many seconds, no controller and no
            other member; one without a role ends when nobody has said for so long that it is claimed. Infinite if it does not
            outlive its controller.
        patience_s: seconds after which nobody waits any more for a call, or for the role to be built: what takes longer hangs.
    """

    def __init__(
        self, nice: int, unclaimed_s: float = math.inf, cores: bool = False, patience_s: float = math.inf
    ) -> None:
        self._began_s: float | None = time.monotonic()
        os.nice(nice)
        if cores and (devices := given_devices()):
            pin(devices)
        self._unclaimed_s, self._patience_s = unclaimed_s, patience_s
        self._role: Future[Mailbox] = Future()
        self._calls = InjectedCalls()
        # Libraries that replace their module while they are imported, as transformers does, break in a second thread that
        # imports them meanwhile: it gets the module that was replaced.
        self._importing = threading.Lock()
        self._told = self._building = False
        self._claimed_s = time.monotonic()  # or built since
        if unclaimed_s < math.inf:
            threading.Thread(target=self._watch, name="unclaimed", daemon=True).start()

    def claimed(self) -> None:
        """Whoever had it started ahead lives, and will have the role built."""
        self._claimed_s = time.monotonic()

    def prepare(self, function: Callable[..., object], arguments: Mapping[str, Any], after: object) -> None:
        """Call a function that saves the role time later. Ray begins once `after`, another actor's answer, is there."""
        del after
        self._began_s = None
        with self._importing:
            function(**arguments)

    def build(self, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
        """Build the role, once. Ray has imported what its factory and arguments need before."""
        if not self._building:
            self._building, self._claimed_s = True, time.monotonic()  # though what saves it time goes on for long
        try:
            began_s = time.monotonic()
            took = {} if self._began_s is None else {"import": began_s - self._began_s}
            with self._importing:
                if self._told:
                    return
                self._told = True
                role = factory(**arguments)
            self._role.set_result(Mailbox(role, {**took, "initialise": time.monotonic() - began_s}))
        except BaseException as error:
            self._claimed_s = time.monotonic()
            self._role.set_exception(error)  # whoever calls the role hears of it

    def _quiet_s(self) -> float:
        """Seconds since anybody called or claimed it last; 0 while the role is built, if that does not hang."""
        quiet_s = time.monotonic() - self._claimed_s
        if not self._role.done():
            return max(0.0, quiet_s - self._patience_s) if self._building else quiet_s
        return quiet_s if self._role.exception() is not None else self._role.result().quiet_s(self._patience_s)

    def _watch(self) -> None:
        """Save and stop once nobody controls the run any more."""
        while self._quiet_s() < self._unclaimed_s:
            time.sleep(_LOOK_S)
        try:
            if self._role.done() and self._role.exception() is None:
                self._role.result().close()
            leave_group(CLOSE_S)
        finally:
            os._exit(0)

    def where(self) -> tuple[str, ProcessId, tuple[int, ...], Machine | None, bool]:
        """Ray's id of the machine, the process, the indices of its devices there, the machine's row of `ray.nodes()`, and
        whether what computes on a GPU there joins a Multi-Process Service.
        """
        import ray

        node = ray.get_runtime_context().get_node_id()
        row = next((row for row in ray.nodes() if row["NodeID"] == node), None)
        return node, ProcessId.current(), given_devices(), row, mps_state().runs

    def call(self, method: str, arguments: tuple[Any, ...], epoch: int | None = None) -> Any:
        return self._calls.call(self._role.result(), method, arguments, epoch)


def given_devices() -> tuple[int, ...]:
    """The indices of the devices that Ray gave this process, rising; those that have names, such as MIG's, have none."""
    import ray

    given = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
    return tuple(sorted(int(index) for index in given if str(index).isdigit()))


def pin(devices: Sequence[int]) -> None:
    """Keep this process on some of the cores that it may use. Threads and processes that it starts inherit them.

    Args:
        devices: which of these cores, by their order; beyond the last one they begin again.
    """
    allowed = sorted(os.sched_getaffinity(0))
    chosen = {allowed[device % len(allowed)] for device in devices}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread.name), chosen)


class RayCaller(NamedCaller):
    """Calls the newest incarnation of a member by name, from any process, and waits for the result."""

    def call(self, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """Call a method and wait for its result; if the member is gone, its next incarnation is looked for."""
        try:
            return super().call(method, *arguments, timeout_s=timeout_s)
        except MemberGoneError as error:
            raise MemberDeadError(str(error)) from error
        except LateAnswerError as error:
            raise DeadlineError(str(error)) from error

    def send(self, actor: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        """Begin a call of the role in an actor."""
        return actor.call.remote(method, arguments)
