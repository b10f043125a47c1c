"""Where a member stops so that a scripted fault strikes it in a phase.

    executor ── stop_at(phase) ──► Stops ◄── at(phase) ── the role's own thread, whenever it comes there
        ▲                            │
        └── True: it waits there ◄───┘        then it is killed, hung, stalled, or told to raise

The thread that waits goes on after `patience_s`, so that a driver that dies meanwhile leaves nobody behind.
"""

from __future__ import annotations

import threading

from tailrace.faulttol import FaultKind, InjectedError
from tailrace.runtime.errors import RoleError


class EndedError(RoleError):
    """The member was ended where it waited to be struck: nothing behind that place is carried out."""


class Stops:
    """The place where a member is to stop; it passes all others. Any thread may call any method.

    Args:
        patience_s: how long a thread waits to be struck, in seconds.
    """

    def __init__(self, patience_s: float = 30.0) -> None:
        self._patience_s = patience_s
        self._changed = threading.Condition()
        self._wanted = ""
        self._there = self._closed = self._held = False
        self._struck: FaultKind | None = None

    # ---- for the role ---------------------------------------------------------------------------------------------

    def at(self, phase: str) -> None:
        """Wait here to be struck, if the member is to stop in this phase.

        Raises:
            InjectedError: it was struck by an exception.
            EndedError: it was ended here.
        """
        if phase != self._wanted:  # every step passes here
            return
        with self._changed:
            if phase != self._wanted or self._there:
                return
            self._there, self._struck = True, None
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._struck is not None, self._patience_s)
            if self._held:
                self._changed.wait_for(lambda: self._closed)
            self._there, self._wanted = False, ""
            if self._closed:
                raise EndedError(f"the member was ended in its phase {phase!r}")
            if self._struck is FaultKind.RAISE:
                raise InjectedError(f"a scripted fault raised this in the phase {phase!r}")

    def wanted(self, phase: str) -> bool:
        """Whether the member is to stop in this phase."""
        return phase == self._wanted

    def close(self) -> None:
        """End whoever waits here, and let nobody wait any more. Call it first when the member closes."""
        with self._changed:
            self._closed, self._wanted = True, ""
            self._changed.notify_all()

    def forget(self) -> None:
        """Stop nowhere: another controller takes over."""
        with self._changed:
            self._wanted = ""

    # ---- for the executor -----------------------------------------------------------------------------------------

    def stop_at(self, phase: str, timeout_s: float = 0.0) -> bool:
        """Have the member stop when it next comes to a phase. Returns whether it waits there within `timeout_s` seconds.

        False at once when the member is ended meanwhile: its successor is then asked.
        """
        with self._changed:
            if not self._there and not self._closed:
                self._wanted = phase
            self._changed.wait_for(lambda: self._closed or (self._there and self._wanted == phase), timeout_s)
            return self._there and self._wanted == phase

    def struck(self, kind: FaultKind) -> bool:
        """Say how the member was struck, once that is done from outside. Returns whether it waited here.

        One that hangs waits until it is closed; one whose engine stalls goes on to where that shows; to raise is done here.
        """
        with self._changed:
            self._held = self._held or (kind is FaultKind.HANG and self._there)
            if not self._there:
                return False
            if kind is not FaultKind.KILL:
                self._struck = kind
                self._changed.notify_all()
            return True
