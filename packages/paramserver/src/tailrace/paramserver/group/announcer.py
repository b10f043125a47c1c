"""Tells publishers their master, on a separate thread, so that slow publishers do not hold up relays.

consumes     `Retarget` commands, in order
waits for    the callback of each
unblocked by `put`, `close`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from tailrace.paramserver.group.messages import Retarget
from tailrace.paramserver.machine.protocol import HostInterface

_log = logging.getLogger(__name__)

OnMaster = Callable[[str], None]


class Announcer:
    """Calls each root's callback with its masters. It begins at once.

    Args:
        callbacks: one for each root, None where nobody is to be told.
        machine: the machine that it runs on.
    """

    def __init__(self, callbacks: Sequence[OnMaster | None], machine: HostInterface) -> None:
        self._callbacks = list(callbacks)
        self._changed = machine.condition()
        self._commands: list[Retarget] = []
        self._closed = False
        self._thread = machine.spawn(self._run, "group announcer")

    @property
    def roots(self) -> int:
        """How many there are."""
        return len(self._callbacks)

    def follow(self, callback: OnMaster, root: int) -> None:
        """Call this for a root from now on."""
        with self._changed:
            self._callbacks[root] = callback

    def put(self, command: Retarget) -> None:
        """Announce a master."""
        with self._changed:
            self._commands.append(command)
            self._changed.notify_all()

    def close(self) -> None:
        """End. `join` waits for the callback that runs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait for the end after `close`."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._commands and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                command = self._commands.pop(0)
                callback = self._callbacks[command.root]
            try:
                if callback is not None:
                    callback(command.address)
            except Exception:  # a user's callback must not end the group's care for the relays
                _log.exception("on_master failed for root %d and the relay %s", command.root, command.address)
