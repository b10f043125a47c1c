"""The local host: members are threads of this process. For embedding, tests and a lone GPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from tailrace.pipeline.errors import DeadlineError
from tailrace.pipeline.executors.host import MemberDeadError, Placement

_THREADS_PER_MEMBER = 4


class LocalMember:
    """A role object and the threads that call it."""

    def __init__(
        self, name: str, factory: Callable[..., Any], arguments: Mapping[str, Any], building: threading.Lock
    ) -> None:
        self._name = name
        self._pool = ThreadPoolExecutor(_THREADS_PER_MEMBER, thread_name_prefix=name)
        self._dead = threading.Event()
        self._role: Future[Any] = self._pool.submit(_build, factory, arguments, building)

    @property
    def pid(self) -> int | None:
        """This process."""
        return os.getpid()

    @property
    def node(self) -> str | None:
        """This machine."""
        return "local"

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method in one of the member's threads."""
        if self._dead.is_set():
            return self._refused()
        try:
            return self._pool.submit(self._invoke, method, arguments)
        except RuntimeError:  # the pool was shut down between the check and here
            return self._refused()

    def caller(self) -> LocalCaller:
        """The member for other members."""
        return LocalCaller(self)

    def kill(self) -> None:
        """A thread cannot be killed: the role is abandoned. Whatever it still says or writes is refused."""
        self._dead.set()
        if self._role.done() and not self._role.exception():
            close = getattr(self._role.result(), "close", None)
            if close is not None:
                threading.Thread(target=close, name=f"{self._name}-abandoned", daemon=True).start()
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
        result = getattr(role, method)(*arguments)
        if self._dead.is_set():
            raise MemberDeadError(f"{self._name} was killed")
        return result

    def _refused(self) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(MemberDeadError(f"{self._name} was killed"))
        return future


def _build(factory: Callable[..., Any], arguments: Mapping[str, Any], building: threading.Lock) -> Any:
    with building:  # transformers does not load models in two threads at once
        return factory(**arguments)


class LocalCaller:
    """Calls a local member and waits."""

    def __init__(self, member: LocalMember) -> None:
        self._member = member

    def call(self, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """Call and wait."""
        try:
            return self._member.call(method, *arguments).result(timeout_s)
        except FutureTimeoutError as error:
            raise DeadlineError(f"{method} did not return within {timeout_s:.0f} s") from error


class LocalHost:
    """Starts members as threads."""

    def __init__(self) -> None:
        self._members: list[LocalMember] = []
        self._building = threading.Lock()

    def spawn(
        self, name: str, factory: Callable[..., Any], arguments: Mapping[str, Any], placement: Placement
    ) -> LocalMember:
        """Start a member. Its environment variables would be this process's, so they are not applied."""
        del placement
        member = LocalMember(name, factory, arguments, self._building)
        self._members.append(member)
        return member

    def close(self) -> None:
        """Abandon whatever is left."""
        for member in self._members:
            member.kill()
        self._members.clear()
