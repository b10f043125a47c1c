"""Calls by name: who calls a member finds its successor, so nobody has to be told or restarted when it is replaced."""

from __future__ import annotations

import time
from typing import Any

from tailrace.faulttol.elastic.actors import NamedActors
from tailrace.faulttol.errors import LateAnswerError, MemberGoneError

_RETRY_S = 0.1


class NamedCaller:
    """Calls the newest incarnation of a member, from any process of the cluster, and waits for the result. It can be pickled.

    Args:
        actors: the run's actors.
        role: the member's role.
        id_: the member's id.
        before: an incarnation that is gone; later ones are looked for.
    """

    def __init__(self, actors: NamedActors, role: str, id_: str = "0", before: int = 0) -> None:
        self._actors, self._role, self._id = actors, role, id_
        self._incarnation = before
        self._actor: Any = None

    def call(self, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """Call a method and wait for its result; if the member is gone, its next incarnation is looked for.

        A call whose answer was lost with the member is made again, so it must bear that.

        Raises:
            MemberGoneError: it is gone, and no successor came within `timeout_s`.
            LateAnswerError: it did not answer within `timeout_s`.
        """
        import ray

        deadline = time.monotonic() + timeout_s
        while True:
            try:
                answer = self.send(self._actor or self._find(), method, arguments)
                return ray.get(answer, timeout=max(0.01, deadline - time.monotonic()))
            except ray.exceptions.GetTimeoutError as error:
                raise LateAnswerError(f"{self}: {method} did not return within {timeout_s:.0f} s") from error
            except (ray.exceptions.RayActorError, MemberGoneError) as error:
                self._actor = None
                if time.monotonic() + _RETRY_S > deadline:
                    raise MemberGoneError(f"{self} is gone, and no successor came within {timeout_s:.0f} s") from error
                time.sleep(_RETRY_S)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error

    def send(self, actor: Any, method: str, arguments: tuple[Any, ...]) -> Any:
        """Begin a call. Returns Ray's reference of its result."""
        return getattr(actor, method).remote(*arguments)

    def _find(self) -> Any:
        """The newest incarnation after the one that is gone."""
        found = self._actors.newest(self._role, self._id, self._incarnation)
        if found is None:
            raise MemberGoneError(f"{self} is not there")
        self._incarnation, self._actor = found
        return self._actor

    def __str__(self) -> str:
        return f"{self._role} {self._id}"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._actors, self._role, self._id, max(0, self._incarnation - 1))
