"""What a group says to relays and publishers, each on a thread of its own, so that a slow one holds up nobody else.

`RelayWatch` is the connection to one relay, for one life of it: heartbeats up, orders down.

    consumes     `SetNext` orders (of several, the newest), `evict`, `stop`
    waits for    the relay's answers (deadline: `patience_s`), the time of the next heartbeat
    unblocked by an order, `evict` and `stop`, which also end a request that is under way

After `evict` it knocks until the relay answers again, tells the group so, and ends: the relay's next life has a link of
its own.

`Fetches` tells relays to pull what they lack from other relays.

    consumes     `Fetch` commands
    waits for    the relay's answer, which comes when it has the version (deadline: `timeout_s`)
    unblocked by `close`

`Announcer` tells publishers their master.

    consumes     `Retarget` commands, in order
    waits for    the callback of each
    unblocked by `put`, `close`
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

from tailrace.paramserver.errors import AuthenticationFailed, ParamServerError, ProtocolError
from tailrace.paramserver.group.messages import (
    Event,
    Fetch,
    Fetched,
    Heard,
    Join,
    Lost,
    Report,
    Retarget,
    SetNext,
    Watch,
)
from tailrace.paramserver.machine.protocol import HostInterface, Thread
from tailrace.paramserver.wire.authentication import connect
from tailrace.paramserver.wire.channel import Channel

_LAST_KNOCK_S = 1.0


class RelayWatch:
    """Watches one relay. It begins at once.

    Args:
        watch: the relay, and which life of it this is.
        site: the relay's site, for when it joins next.
        post: takes the events.
        token: shared secret.
        heartbeat_s: seconds between two heartbeats.
        patience_s: how long the relay may take for any answer.
        machine: the machine that it runs on.
    """

    def __init__(
        self,
        watch: Watch,
        site: str,
        post: Callable[[Event], None],
        *,
        token: str,
        heartbeat_s: float,
        patience_s: float,
        machine: HostInterface,
    ) -> None:
        self._watch, self._site, self._post = watch, site, post
        self._token, self._heartbeat_s, self._patience_s, self._machine = token, heartbeat_s, patience_s, machine
        self._changed = machine.condition()
        self._order: SetNext | None = None
        self._orders = 0  # carried out
        self._channel: Channel | None = None
        self._incarnation: tuple[object, ...] | None = None
        self._evicted = self._stopped = False
        self._thread = machine.spawn(self._run, f"link to {watch.name}")

    @property
    def life(self) -> int:
        """Which life of the relay it watches."""
        return self._watch.life

    def order(self, command: SetNext) -> None:
        """Carry this order out in place of any earlier one."""
        with self._changed:
            self._order = command
            self._changed.notify_all()

    def evict(self) -> None:
        """The relay is dead: only knock from now on."""
        with self._changed:
            self._evicted = True
            self._interrupt()

    def stop(self) -> None:
        """End. Does not wait for the thread, which may be the caller's; `join` does."""
        with self._changed:
            self._stopped = True
            self._interrupt()

    def join(self, timeout_s: float) -> None:
        """Wait for the end after `stop`."""
        self._thread.join(timeout_s)

    def alive(self) -> bool:
        """Whether its thread still runs."""
        return self._thread.is_alive()

    def _interrupt(self) -> None:
        if self._channel is not None:
            self._channel.shutdown()
        self._changed.notify_all()

    def _run(self) -> None:
        failed = False  # the last attempt at a connection
        while not self._over():
            try:
                channel, welcome = self._connect()
            except ParamServerError as error:
                denied = isinstance(error, AuthenticationFailed)
                gone = denied or isinstance(error.__cause__, ConnectionRefusedError)
                self._post(Lost(self._watch.name, self.life, gone, str(error), denied))
                failed = True
            else:
                failed = False
                self._converse(channel, (welcome.get("pid"), welcome.get("nonce")))
            if failed:
                self._pause(self._heartbeat_s)
        self._knock()

    def _converse(self, channel: Channel, incarnation: tuple[object, ...]) -> None:
        """Heartbeats and orders until the connection breaks."""
        with self._changed:
            known, self._incarnation = self._incarnation, incarnation
            self._channel = channel
            if self._evicted or self._stopped:  # `_interrupt` came before there was a channel
                channel.shutdown()
        try:
            if known not in (None, incarnation):  # another process at the same address, which knows nothing
                self._rejoin()
                return
            self._beat(channel)
        except ParamServerError as error:
            self._post(Lost(self._watch.name, self.life, False, str(error)))
        finally:
            with self._changed:
                self._channel = None
            channel.close()

    def _beat(self, channel: Channel) -> None:
        while not self._over():
            with self._changed:
                order, self._order = self._order, None
            if order is not None:
                try:
                    channel.request({"op": "set_next", "addresses": list(order.addresses)}, self._patience_s)
                except BaseException:
                    with self._changed:
                        self._order = self._order or order  # for the next connection
                    raise
                self._orders = order.order
            report = read_report(channel, self._patience_s)
            self._post(Heard(self._watch.name, self.life, self._orders, report))
            self._pause(self._heartbeat_s)

    def _knock(self) -> None:
        wait_s = self._heartbeat_s
        while not self._ended():
            self._pause(wait_s, orders=False)
            wait_s = min(_LAST_KNOCK_S, 2 * wait_s)
            if not self._ended() and self._answers():
                self._rejoin()
                return

    def _answers(self) -> bool:
        """Whether the relay works again; that something listens is not enough."""
        try:
            channel, _ = self._connect()
        except ParamServerError:
            return False
        try:
            channel.request({"op": "versions"}, self._patience_s)
        except ParamServerError:
            return False
        finally:
            channel.close()
        return True

    def _connect(self) -> tuple[Channel, dict[str, Any]]:
        return connect(
            self._machine,
            self._watch.address,
            token=self._token,
            timeout_s=self._patience_s,
            stall_s=self._patience_s,
        )

    def _rejoin(self) -> None:
        self._post(Join(self._watch.name, self._watch.address, self._site))

    def _over(self) -> bool:
        with self._changed:
            return self._evicted or self._stopped

    def _ended(self) -> bool:
        with self._changed:
            return self._stopped

    def _pause(self, seconds: float, *, orders: bool = True) -> None:
        """Until so much time has passed, or there is something to do."""
        deadline = self._machine.now() + seconds
        with self._changed:
            while (remaining := deadline - self._machine.now()) > 0:
                if self._stopped or (orders and (self._evicted or self._order is not None)):
                    return
                self._changed.wait(remaining)


def read_report(channel: Channel, timeout_s: float) -> Report:
    """Ask a relay for its account of itself.

    Raises:
        ProtocolError: it is not what a relay says.
        RelayUnreachable, RelayTimeout: none came.
    """
    versions: Any = channel.request({"op": "versions"}, timeout_s).get("versions")
    status = channel.request({"op": "status"}, timeout_s)
    try:
        under_way = {**status["partial"], **status["receiving"]}  # "3/40 chunks"
        arriving = {int(version): int(text.partition("/")[0]) for version, text in under_way.items()}
        return Report(
            versions=tuple((int(version), int(stamp)) for version, stamp in versions),
            arriving=arriving,
            next=tuple(str(address) for address in status["hops"]),
            sealed=tuple(int(version) for version in status["sealed"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"{channel.peer} sent a status without or with a wrong {error}") from error


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
