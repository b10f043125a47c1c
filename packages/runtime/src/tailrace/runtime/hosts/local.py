"""The local host: members are threads of this process. For embedding, tests and a lone GPU."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any

from tailrace.contracts import Place, ProcessSeat
from tailrace.faulttol import FaultKind
from tailrace.runtime.errors import DeadlineError
from tailrace.runtime.executor.seam import MemberDeadError, RoleSpec
from tailrace.runtime.hosts.mailbox import InjectedCalls, Mailbox
from tailrace.runtime.hosts.real_time import OwnProcess, RealTime

_THREADS_PER_MEMBER = 4
_RETRY_S = 0.05


class LocalMember:
    """A role object and the threads that call it."""

    def __init__(self, name: str, spec: RoleSpec, building: threading.Lock, epoch: int) -> None:
        self._name, self._epoch = name, epoch
        self._pool = ThreadPoolExecutor(_THREADS_PER_MEMBER, thread_name_prefix=name)
        # heartbeats and commands do not wait for a thread behind what members ask
        self._control = ThreadPoolExecutor(_THREADS_PER_MEMBER, thread_name_prefix=f"{name}-control")
        self._dead = threading.Event()
        self._hung = threading.Event()
        self._calls = InjectedCalls()
        self._role: Future[Mailbox] = self._pool.submit(self._build, spec, building)

    @property
    def pid(self) -> int | None:
        """This process."""
        return os.getpid()

    @property
    def machine(self) -> str:
        """This machine."""
        return "local"

    @property
    def seat(self) -> ProcessSeat:
        """This machine; members share what devices this process has."""
        return ProcessSeat(self.machine)

    @property
    def dead(self) -> bool:
        """Whether it was killed or closed."""
        return self._dead.is_set()

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method in one of the member's threads, for the controller that started it."""
        return self.call_for(self._epoch, method, arguments)

    def call_for(self, epoch: int | None, method: str, arguments: tuple[Any, ...]) -> Future[Any]:
        """Call a method for the controller of an epoch; None: for another member."""
        if self._dead.is_set():
            return self._refused()
        try:
            pool = self._pool if epoch is None else self._control
            work = pool.submit(self._invoke, epoch, method, arguments)
        except RuntimeError:  # the pool was shut down after the check
            return self._refused()
        answer: Future[Any] = Future()
        work.add_done_callback(lambda done: self._answer(answer, done))
        return answer

    def strike(self, kind: FaultKind) -> None:
        """Inject a fault: abandon the role's threads or keep them from answering, or strike a role's own process."""
        if self._role.done() and not self._role.exception() and self._calls.strike(self._role.result().role, kind):
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
        for pool in (self._pool, self._control):
            pool.shutdown(wait=False, cancel_futures=True)

    def close(self, timeout_s: float) -> None:
        """Call the role's `close`, if it has one."""
        if not self._dead.is_set() and self._role.done() and not self._role.exception():
            mailbox = self._role.result()
            if hasattr(mailbox.role, "close"):
                try:
                    self._control.submit(mailbox.close).result(timeout_s)
                except FutureTimeoutError as error:
                    raise DeadlineError(f"{self._name} did not close within {timeout_s:.0f} s") from error
        self._dead.set()
        for pool in (self._pool, self._control):
            pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, answer: Future[Any], done: Future[Any]) -> None:
        """Hand a call's result on. One that waited for a thread as the member was killed has the same error as the others."""
        error = self._killed() if done.cancelled() else done.exception()
        if error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(done.result())

    def _invoke(self, epoch: int | None, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            result = self._calls.call(self._role.result(), method, arguments, epoch)
        except Exception as error:
            if self._dead.is_set():  # errors of a role that was killed mean nothing
                raise self._killed() from error
            raise
        while self._hung.is_set() and not self._dead.is_set():
            time.sleep(_RETRY_S)
        if self._dead.is_set():
            raise self._killed()
        return result

    def _build(self, spec: RoleSpec, building: threading.Lock) -> Mailbox:
        with building:  # transformers cannot load models in two threads at once
            if self._dead.is_set():
                raise self._killed()
            began_s = time.monotonic()
            role = spec.factory(**spec.arguments)
            return Mailbox(role, {"initialise": time.monotonic() - began_s})

    def _abandon(self, built: Future[Mailbox]) -> None:
        if not built.cancelled() and built.exception() is None:
            mailbox = built.result()
            if hasattr(mailbox.role, "close"):
                threading.Thread(
                    target=_tidy_up, args=(mailbox.close,), name=f"{self._name}-abandoned", daemon=True
                ).start()

    def _refused(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(self._killed())
        return future

    def _killed(self) -> MemberDeadError:
        return MemberDeadError(f"{self._name} was killed")


def _tidy_up(close: Callable[[], object]) -> None:
    with suppress(Exception):  # nobody waits for it, and members that it needs may be gone too
        close()


class LocalHandle:
    """A member as another controller than the one that started it calls it.

    Args:
        member: the member.
        epoch: of this controller.
    """

    def __init__(self, member: LocalMember, epoch: int) -> None:
        self._member, self._epoch = member, epoch
        self.pid, self.machine, self.seat = member.pid, member.machine, member.seat
        self.strike, self.kill, self.close = member.strike, member.kill, member.close

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method in one of the member's threads."""
        return self._member.call_for(self._epoch, method, arguments)


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
                return member.call_for(None, method, arguments).result(max(0.0, deadline - time.monotonic()))
            except FutureTimeoutError as error:
                raise DeadlineError(f"{self._name}: {method} did not return within {timeout_s:.0f} s") from error
            except MemberDeadError:
                if self._closed.is_set() or time.monotonic() + _RETRY_S > deadline:
                    raise MemberDeadError(
                        f"{self._name} is gone, and no successor came within {timeout_s:.0f} s"
                    ) from None
                time.sleep(_RETRY_S)


class LocalHost(OwnProcess):
    """Starts members as threads.

    Args:
        started_s: time now on the run's clock, in seconds.
    """

    poll_s = 0.5
    tick_s = 0.5

    def __init__(self, started_s: float = 0.0) -> None:
        self.time = RealTime(started_s)
        self.epoch = 1
        self._members: dict[tuple[str, str], LocalMember] = {}
        self._incarnations: dict[tuple[str, str], int] = {}
        self._building = threading.Lock()
        self._closed = threading.Event()

    def spawn(self, role: str, id_: str, incarnation: int, spec: RoleSpec, place: Place) -> LocalMember:
        """Start a member on this machine. Environment and niceness are not applied, since they are the process's."""
        del place
        member = LocalMember(f"{role}-{id_}-{incarnation}", spec, self._building, self.epoch)
        self._incarnations[role, id_] = incarnation
        self._members[role, id_] = member
        return member

    def find(self, role: str, id_: str, incarnation: int, spec: RoleSpec | None = None) -> LocalHandle | None:
        """A handle of a member that another controller in this process has started; None if it does not live."""
        del spec  # it was told as it was started
        member = self._members.get((role, id_))
        if member is None or member.dead or self._incarnations[role, id_] != incarnation:
            return None
        return LocalHandle(member, self.epoch)

    def caller(self, role: str, id_: str = "0") -> LocalCaller:
        """A caller of the member that has the name at the time of a call."""
        return LocalCaller(lambda: self._members.get((role, id_)), f"{role} {id_}", self._closed)

    def close(self) -> None:
        """Abandon all members that still run."""
        self._closed.set()
        for member in self._members.values():
            member.kill()
        self._members.clear()
