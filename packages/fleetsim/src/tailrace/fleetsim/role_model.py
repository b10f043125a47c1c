"""What the virtual host asks of the model of a role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tailrace.contracts import Command


class RoleModel(Protocol):
    """A modelled role."""

    def begin(self, member: Any) -> None:
        """A fresh process of it is starting, a `VirtualMember`."""
        ...

    def starts_s(self, incarnation: int) -> float:
        """Seconds until a fresh process serves."""
        ...

    def ready(self, *arguments: Any) -> dict[str, Any]:
        """Start to serve. Returns fields of its `Up`. Raises if it cannot."""
        ...

    def submit(self, commands: Sequence[Command]) -> None:
        """Commands have arrived."""
        ...

    def die(self) -> None:
        """Its process is gone."""
        ...

    def hang(self) -> None:
        """Its process lives and does nothing any more."""
        ...

    def stall(self) -> None:
        """Its process lives and answers, and its engine does nothing any more."""
        ...
