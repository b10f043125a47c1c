"""Where roles live. An executor talks to members through this seam and knows nothing of threads or actors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol

from tailrace.pipeline.errors import RoleError


class MemberDeadError(RoleError):
    """A member is gone: its process died or was killed."""


class Caller(Protocol):
    """A member as another member sees it: picklable where members are processes, and synchronous."""

    def call(self, method: str, *arguments: Any, timeout_s: float = 60.0) -> Any:
        """Call a method and wait for its result.

        Raises:
            MemberDeadError: the member is gone.
            DeadlineError: no answer within `timeout_s` seconds.
        """
        ...


class Member(Protocol):
    """One running role."""

    @property
    def pid(self) -> int | None:
        """Its process, None before it is ready."""
        ...

    @property
    def node(self) -> str | None:
        """The machine that it runs on, None before it is ready."""
        ...

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """Call a method of the role. The future raises `MemberDeadError` when the member is gone."""
        ...

    def caller(self) -> Caller:
        """The member for other members."""
        ...

    def kill(self) -> None:
        """End it now, without a chance to tidy up."""
        ...

    def close(self, timeout_s: float) -> None:
        """Let it tidy up, then end it."""
        ...


@dataclass(frozen=True, slots=True)
class Placement:
    """What a member needs.

    Args:
        cpus: share of CPU cores, for scheduling only.
        gpus: GPUs.
        environment: environment variables of its process.
        node: counts the cluster's machines, for members of which each machine has one; None leaves the choice to the host.
    """

    cpus: float = 0.0
    gpus: float = 0.0
    environment: Mapping[str, str] | None = None
    node: int | None = None


class Host(Protocol):
    """Starts members."""

    def spawn(
        self, name: str, factory: Callable[..., Any], arguments: Mapping[str, Any], placement: Placement
    ) -> Member:
        """Start a member that runs ``factory(**arguments)``. Returns at once; its first call waits for the start."""
        ...

    def close(self) -> None:
        """End whatever is left."""
        ...
