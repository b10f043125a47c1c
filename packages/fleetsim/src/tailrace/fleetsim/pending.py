"""Answers in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Pending:
    """An answer that comes later."""

    __slots__ = ("_calls", "_error", "_result", "done")

    def __init__(self) -> None:
        self._calls: list[Callable[[Any], None]] = []
        self._result: Any = None
        self._error: BaseException | None = None
        self.done = False

    def add_done_callback(self, call: Callable[[Any], None], /) -> None:
        if self.done:
            call(self)
        else:
            self._calls.append(call)

    def cancelled(self) -> bool:
        """Never."""
        return False

    def exception(self) -> BaseException | None:
        return self._error

    def result(self) -> Any:
        return self._result

    def resolve(self, result: Any, error: BaseException | None = None) -> None:
        """It is there."""
        if not self.done:
            self.done, self._result, self._error = True, result, error
            for call in self._calls:
                call(self)
