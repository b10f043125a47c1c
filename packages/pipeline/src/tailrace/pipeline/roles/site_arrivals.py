"""When a version may be pulled: once every site has it, so that no replica stops to wait for the slow link.

Weights move behind training and generation (StreamRL, section 4.1): a replica that were told of a version which is still on its
way would stand at its relay until it has come. So the controller hears of a version when a relay of each site shows it, and
replicas go on with the one before until then. A site whose relays are all dead is not waited for, and none for longer than
`PATIENCE_S`: then its replicas wait, and the others need not.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from tailrace.paramserver import PublishTimeout, RelayGroup, RelayUnreachable

_log = logging.getLogger(__name__)
PATIENCE_S = 60.0


class SiteArrivals:
    """Reports versions in the order in which the master relay showed them, from a thread of its own.

    Args:
        group: the relays and their sites.
        arrived: called with each version.
        patience_s: how long a version is held back for a site, from when the master relay showed it: those that wait behind
            another are held back no longer for that.
    """

    def __init__(self, group: RelayGroup, arrived: Callable[[int], None], *, patience_s: float = PATIENCE_S) -> None:
        self._group, self._arrived, self._patience_s = group, arrived, patience_s
        self._changed = threading.Condition()
        self._waiting: dict[int, float] = {}  # until when each is held back
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="arrivals at sites", daemon=True)
        self._thread.start()

    def expect(self, version: int) -> None:
        """A version is on the master relay."""
        with self._changed:
            self._waiting.setdefault(version, time.monotonic() + self._patience_s)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Stop. The group must be closed before, which ends a wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                version, until = next(iter(self._waiting.items()))
            there = True
            try:
                self._group.wait_sites(version, max(0.0, until - time.monotonic()))
            except PublishTimeout as error:
                _log.warning("%s; its replicas will wait for it", error)
            except RelayUnreachable as error:  # no relay lives: the controller hears of it, and publishes again
                _log.info("version %d is on no relay any more: %s", version, error)
                there = False
            with self._changed:
                del self._waiting[version]
            if there:
                self._arrived(version)
