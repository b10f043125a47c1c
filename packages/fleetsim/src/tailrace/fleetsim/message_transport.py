"""How messages between the executor and modelled members travel; whoever breaks them implements this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tailrace.contracts import Command, Event


class MessageTransport(Protocol):
    """The delivery of messages between the executor and members: delayed, reordered, repeated or held back."""

    def commands(
        self, role: str, member: str, commands: Sequence[Command], now: float
    ) -> list[tuple[float, list[Command]]]:
        """Times at which commands sent now arrive, each once or more often."""
        ...

    def report(self, role: str, member: str, now: float) -> float:
        """Time at which a report sent now arrives; reports of one member keep their order."""
        ...

    def repeated(self, events: Sequence[Event]) -> list[Event]:
        """Events that arrive a second time."""
        ...

    def renewed(self, role: str, member: str) -> None:
        """The member is another process now."""
        ...
