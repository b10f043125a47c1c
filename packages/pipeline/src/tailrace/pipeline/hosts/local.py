"""The local host: members are threads of this process. For embedding, tests and a lone GPU."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any

from tailrace.contracts import Place
from tailrace.faulttol import FaultKind
from tailrace.pipeline.errors import DeadlineError
from tailrace.pipeline.executor.seam import MemberDeadError, RoleSpec
from tailrace.pipeline.hosts.real_time import RealTime

_THREADS_PER_MEMBER = 4
_RETRY_S = 0.05


class LocalMember:
    """A role object and the threads that call it."""

    def __init__(self, name: str, spec: RoleSpec, building: threading.Lock) -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(_THREADS_PER_MEMBER, thread_name_prefix=name)
        self._dead = threading.Event()
        self._hung = threading.Event()
        self._role: Future[Any] = self._pool.submit(self._build, spec, building)

    @property
    def pid(self) -> int | None:
        """This process."""
        return os.getpid()

    @property
    def machine(self) -> str:
        """This machine."""
        return "local"

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method in one of the member's threads."""
        if self._dead.is_set():
            return self._refused()
        try:
            return self._pool.submit(self._invoke, method, arguments)
        except RuntimeError:  # the pool was shut down after the check
            return self._refused()

    def strike(self, kind: FaultKind) -> None:
        """Inject a fault: abandon the role's threads or keep them from answering, or strike a role's own process."""
        struck = getattr(self._role.result(), "strike", None) if self._role.done() else None
        if struck is not None and struck(kind):
            return
        if kind is FaultKind.HANG:
            self._hung.set()
        else:
            self.kill()

    def kill(self) -> None:
        """Abandon the role, since a thread cannot be killed. Its further events and writes are refused."""
        if self._dead.is_set():
            return
        self._dead.set()
        self._hung.clear()
        self._role.add_done_callback(self._abandon)  # once it is built
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self, timeout_s: float) -> None:
        """Call the role's `close`, if it has one."""
        if not self._dead.is_set() and self._role.done() and not self._role.exception():
            close = getattr(self._role.result(), "close", None)
            if close is not None:
                try:
                    self._pool.submit(close).result(timeout_s)
                except FutureTimeoutError as error:
                    raise DeadlineError(f"{self._name} did not close within {timeout_s:.0f} s") from error
        self._dead.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _invoke(self, method: str, arguments: tuple[Any, ...]) -> Any:
        role = self._role.result()
        try:
            result = getattr(role, method)(*arguments)
        except Exception as error:
            if self._dead.is_set():  # errors of a role that was killed mean nothing
                raise MemberDeadError(f"{self._name} was killed") from error
            raise
        while self._hung.is_set() and not self._dead.is_set():
            time.sleep(_RETRY_S)
        if self._dead.is_set():
            raise MemberDeadError(f"{self._name} was killed")
        return result

    def _build(self, spec: RoleSpec, building: threading.Lock) -> Any:
        with building:  # transformers cannot load models in two threads at once
            if self._dead.is_set():
                raise MemberDeadError(f"{self._name} was killed")
            return spec.factory(**spec.arguments)

    def _abandon(self, built: Future[Any]) -> None:
        if not built.cancelled() and built.exception() is None:
            close = getattr(built.result(), "close", None)
            if close is not None:
                threading.Thread(target=_tidy_up, args=(close,), name=f"{self._name}-abandoned", daemon=True).start()

    def _refused(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(MemberDeadError(f"{self._name} was killed"))
        return future


def _tidy_up(close: Callable[[], object]) -> None:
    with suppress(Exception):  # nobody waits for it, and members that it needs may be gone too
        close()


class LocalCaller:
    """Calls the current member of a name on a host, and waits for the result.

    Args:
        find: returns the member; None while there is none.
        name: the member's name.
        closed: set once the host is closed, so that no member will come.
    """

    def __init__(self, find: Callable[[], LocalMember | None], name: str, closed: threading.Event) -> None:
        self._find, self._name, self._closed = find, name, closed

    def call(self, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """Call a method and wait for its result; if the member is gone, its successor is looked for."""
        deadline = time.monotonic() + timeout_s
        while True:
            member = self._find()
            try:
                if member is None:
                    raise MemberDeadError(f"{self._name} is not there")
                return member.call(method, *arguments).result(max(0.0, deadline - time.monotonic()))
            except FutureTimeoutError as error:
                raise DeadlineError(f"{self._name}: {method} did not return within {timeout_s:.0f} s") from error
            except (MemberDeadError, CancelledError):
                if self._closed.is_set() or time.monotonic() + _RETRY_S > deadline:
                    raise MemberDeadError(
                        f"{self._name} is gone, and no successor came within {timeout_s:.0f} s"
                    ) from None
                time.sleep(_RETRY_S)


class LocalHost:
    """Starts members as threads.

    Args:
        started_s: time now on the run's clock, in seconds.
    """

    poll_s = 0.2
    tick_s = 0.5

    def __init__(self, started_s: float = 0.0) -> None:
        self.time = RealTime(started_s)
        self._members: dict[tuple[str, str], LocalMember] = {}
        self._building = threading.Lock()
        self._closed = threading.Event()

    def spawn(self, role: str, id_: str, incarnation: int, spec: RoleSpec, place: Place) -> LocalMember:
        """Start a member on this machine. Environment and niceness are not applied, since they are the process's."""
        del place
        member = LocalMember(f"{role}-{id_}-{incarnation}", spec, self._building)
        self._members[role, id_] = member
        return member

    def caller(self, role: str, id_: str = "0") -> LocalCaller:
        """A caller of the member that has the name at the time of a call."""
        return LocalCaller(lambda: self._members.get((role, id_)), f"{role} {id_}", self._closed)

    def close(self) -> None:
        """Abandon all members that still run."""
        self._closed.set()
        for member in self._members.values():
            member.kill()
        self._members.clear()
