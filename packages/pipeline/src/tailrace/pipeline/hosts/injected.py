"""Calls of a role's methods, and faults that happen in its code: what hosts whose members run real code share."""

from __future__ import annotations

from typing import Any

from tailrace.faulttol import FaultKind, InjectedError
from tailrace.pipeline.hosts.mailbox import Mailbox


class InjectedCalls:
    """Calls the methods of one role. Once it was struck by an exception, its next answer is that exception."""

    def __init__(self) -> None:
        self._raises = False

    def call(self, mailbox: Mailbox, method: str, arguments: tuple[Any, ...], epoch: int | None = None) -> Any:
        """See `Mailbox.call`; of ``strike``, whether the role carried the fault out.

        Raises:
            InjectedError: a fault was to raise it, and the role waited in none of its phases.
        """
        if method == "strike":
            return self.strike(mailbox.role, *arguments)
        if method == "events" and self._raises:
            raise InjectedError("a scripted fault raised this")
        return mailbox.call(method, arguments, epoch)

    def strike(self, role: Any, kind: FaultKind) -> bool:
        """Strike a role from inside. Returns whether it has been done; a kill or a hang of its process is the host's."""
        stops, own = getattr(role, "stops", None), getattr(role, "strike", None)
        if kind is FaultKind.RAISE:
            self._raises = stops is None or not stops.struck(kind)
            return True
        done = own is not None and own(kind)
        if stops is not None:
            stops.struck(kind)
        return bool(done)
