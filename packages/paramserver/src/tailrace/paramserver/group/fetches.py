"""Tells relays to pull what they lack from other relays, each on its own thread and connection.

consumes     `Fetch` commands
waits for    the relay's answer, which comes when it has the version (deadline: `timeout_s`)
unblocked by `close`
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from tailrace.paramserver.errors import ParamServerError
from tailrace.paramserver.group.messages import Fetch, Fetched
from tailrace.paramserver.machine.protocol import HostInterface, Thread
from tailrace.paramserver.wire.authentication import connect
from tailrace.paramserver.wire.channel import Channel

_log = logging.getLogger(__name__)
_GRACE_S = 1.0  # for the relay's own deadline to come first


class Fetches:
    """The fetches that are under way.

    Args:
        post: takes the `Fetched`.
        token: shared secret.
        timeout_s: deadline in seconds for one fetch.
        patience_s: how long a relay may take to accept a connection.
        machine: the machine that it runs on.
    """

    def __init__(
        self,
        post: Callable[[Fetched], None],
        *,
        token: str,
        timeout_s: float,
        patience_s: float,
        machine: HostInterface,
    ) -> None:
        self._post, self._token, self._timeout_s, self._patience_s = post, token, timeout_s, patience_s
        self._machine, self._lock = machine, machine.lock()
        self._channels: set[Channel] = set()
        self._threads: list[Thread] = []
        self._closed = False

    def start(self, command: Fetch, address: str) -> None:
        """Tell the relay at this address, and return."""
        _log.info("relay %s lacks version %d, fetches from %s", command.name, command.version, command.source)
        with self._lock:
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            run = functools.partial(self._run, command, address)
            self._threads.append(self._machine.spawn(run, f"fetch for {command.name}"))

    def close(self) -> None:
        """End all threads. Relays may finish fetches that they have begun."""
        with self._lock:
            self._closed = True
            for channel in self._channels:
                channel.shutdown()

    def join(self, timeout_s: float) -> None:
        """Wait for the end after `close`, for each so long at most."""
        for thread in self._threads:
            thread.join(timeout_s)

    def _run(self, command: Fetch, address: str) -> None:
        error: str | None = None
        try:
            self._ask(command, address)
        except ParamServerError as failure:
            error = str(failure)
            _log.warning("relay %s cannot fetch from %s: %s", command.name, command.source, error)
        self._post(Fetched(command.name, command.life, command.version, command.source, error))

    def _ask(self, command: Fetch, address: str) -> None:
        channel, _ = connect(
            self._machine, address, token=self._token, timeout_s=self._patience_s, stall_s=self._patience_s
        )
        try:
            with self._lock:
                if self._closed:
                    return
                self._channels.add(channel)
            channel.request(
                {"op": "fetch", "version": command.version, "source": command.address, "timeout_s": self._timeout_s},
                self._timeout_s + _GRACE_S,
            )
        finally:
            with self._lock:
                self._channels.discard(channel)
            channel.close()
