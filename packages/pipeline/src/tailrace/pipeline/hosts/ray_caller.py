"""Calls between members on Ray: by name, so that a restarted member is found again."""

from __future__ import annotations

import time
from typing import Any

from tailrace.pipeline.errors import DeadlineError
from tailrace.pipeline.executor.seam import MemberDeadError

_RETRY_S = 0.1
_LOOK_AHEAD = 8  # most incarnations that may have died unnoticed by a caller


class RayCaller:
    """Calls the newest incarnation of a member by name, from any process, and waits for the result.

    Args:
        run: the run's name on the cluster.
        role: the member's role.
        id_: the member's id.
        before: an incarnation that is gone; later ones are looked for.
    """

    def __init__(self, run: str, role: str, id_: str, before: int = 0) -> None:
        self._run, self._role, self._id = run, role, id_
        self._incarnation = before
        self._actor: Any = None

    def call(self, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """Call a method and wait for its result; if the member is gone, its next incarnation is looked for."""
        import ray

        deadline = time.monotonic() + timeout_s
        while True:
            try:
                actor = self._actor or self._find()
                return ray.get(actor.call.remote(method, arguments), timeout=max(0.01, deadline - time.monotonic()))
            except ray.exceptions.GetTimeoutError as error:
                raise DeadlineError(f"{self}: {method} did not return within {timeout_s:.0f} s") from error
            except (ray.exceptions.RayActorError, MemberDeadError) as error:
                self._actor = None
                if time.monotonic() + _RETRY_S > deadline:
                    raise MemberDeadError(f"{self} is gone, and no successor came within {timeout_s:.0f} s") from error
                time.sleep(_RETRY_S)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error

    def _find(self) -> Any:
        """The newest incarnation after the one that is gone."""
        import ray

        for incarnation in range(self._incarnation + _LOOK_AHEAD, self._incarnation, -1):
            try:
                actor = ray.get_actor(actor_name(self._run, self._role, self._id, incarnation))
            except ValueError:
                continue
            self._actor, self._incarnation = actor, incarnation
            return actor
        raise MemberDeadError(f"{self} is not there")

    def __str__(self) -> str:
        return f"{self._role} {self._id}"

    def __reduce__(self) -> tuple[Any, ...]:
        return RayCaller, (self._run, self._role, self._id, max(0, self._incarnation - 1))


def actor_name(run: str, role: str, id_: str, incarnation: int) -> str:
    """The name of a member's actor."""
    return f"{run}/{role}-{id_}-{incarnation}"
