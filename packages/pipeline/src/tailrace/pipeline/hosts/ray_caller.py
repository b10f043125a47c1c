"""Calls between members on Ray: by name, so that a restarted member is found again."""

from __future__ import annotations

from typing import Any

from tailrace.faulttol import LateAnswerError, MemberGoneError
from tailrace.faulttol.elastic import NamedCaller
from tailrace.pipeline.errors import DeadlineError
from tailrace.pipeline.executor.seam import MemberDeadError


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
