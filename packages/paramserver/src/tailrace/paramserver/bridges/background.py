"""Something that runs beside its caller and keeps a deadline of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from tailrace.paramserver.machine.host import HOST

_T = TypeVar("_T")


def started(run: Callable[[], _T], name: str) -> Future[_T]:
    """Run on a thread of its own, which has a deadline but is not waited for."""
    future: Future[_T] = Future()

    def fill() -> None:
        try:
            future.set_result(run())
        except BaseException as error:  # it is raised where the result is asked for
            future.set_exception(error)

    HOST.spawn(fill, name)
    return future


def has_failed(future: Future[Any]) -> bool:
    """Whether it ended with an error."""
    return future.done() and future.exception() is not None
