"""Pushing one staged version to the master relay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tailrace.paramserver.clients.staging import Staged, StagedState, StagedSupply
from tailrace.paramserver.errors import (
    ProtocolError,
    RelayUnreachable,
    VersionRetired,
    VersionSuperseded,
)
from tailrace.paramserver.machine.protocol import Condition, HostInterface
from tailrace.paramserver.manifest import Manifest
from tailrace.paramserver.wire.agreement import Means, Offer, OfferAnswer
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, connect
from tailrace.paramserver.wire.channel import Channel, TrafficCounts
from tailrace.paramserver.wire.sending import send_version

_REMEMBERED = 16
_LOOK_S = 0.02
_OFFER_AGAIN_S = 5.0  # pause before offering a version again that the relay dropped meanwhile


class Pusher:
    """The publisher's connection to the master relay. One thread pushes; others may `cut`.

    Args:
        staged: all staging buffers of the publisher.
        changed: guards them.
        token: shared secret.
        means: transports and codecs to offer.
        slot_timeout_s: how long the relay may take to free a slot.
        stall_s: how long the relay may make no progress.
        alone: see `Publisher`.
        machine: the machine that it runs on.
    """

    def __init__(
        self,
        staged: Sequence[Staged],
        changed: Condition,
        token: str,
        *,
        means: Means,
        slot_timeout_s: float,
        stall_s: float,
        alone: bool,
        machine: HostInterface,
    ) -> None:
        self._staged, self._changed, self._token, self._means = staged, changed, token, means
        self._slot_timeout_s, self._stall_s, self._machine = slot_timeout_s, stall_s, machine
        self.counts = TrafficCounts()
        self._encoder = means.encoder(machine.now)
        self._alone, self._looked = alone, False
        self._channel: Channel | None = None
        self._address = self._nonce = ""
        self._sealed: dict[int, tuple[int, int]] = {}  # the last sealed offer of each version
        self._revealed: dict[tuple[int, int], None] = {}  # a relay that becomes master may have missed it
        self._owed: dict[tuple[int, int], None] = {}
        self._first: dict[int, int] = {}  # of stamps that moved: what they were, which is in order of publication
        self._latest = -1  # of the latest publication that was offered: what its stamp was at first

    def push(
        self,
        staged: Staged,
        address: str,
        current: Callable[[], bool],
        give_up: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Send a version, unless the relay has it; of a share, return once the others' are there too.

        Its stamp moves behind that of the newest version of others there.

        Args:
            address: the relay's address.
            current: whether it is still the one to push to.
            give_up: asked while the relay has no room; True abandons the push.

        Returns:
            Whether it is sealed there, as far as this push goes.

        Raises:
            ParamServerError, OSError: it is not there. What arrived of it is kept.
        """
        channel = self._open(address, current)
        if self._alone and not self._looked:
            self._retire_left(channel)
        self._reveal_owed(channel)
        newest = self._newest_stamp(channel)
        with self._changed:
            manifest = staged.manifest
            if manifest is None:
                raise RuntimeError("a staged version has a manifest")
            first = self._first.get(manifest.stamp, manifest.stamp)
            if newest > manifest.stamp and staged.pinned is None and first >= self._latest:
                # Published by a trainer on a host whose clock was ahead of ours, and not by us after this version.
                manifest = staged.manifest = dataclasses.replace(manifest, stamp=newest + 1)
                self._first[manifest.stamp] = first
                _trim(self._first)
            self._latest = max(self._latest, first)
            sealed = staged.sealed
            if sealed:
                self._sealed[manifest.version] = manifest.key
                _trim(self._sealed)
            borrowed = staged.memory.borrowed
            ours = borrowed is not None and not borrowed.offered and borrowed.nonce == self._nonce
            loan = borrowed.id if borrowed is not None and ours else None

        def agreed(answer: OfferAnswer | None) -> None:
            if answer is not None and borrowed is not None:
                borrowed.offered = True  # from now on it may be a slot's

        share, whole = staged.share, False
        while not whole:
            with self._means.exported(staged.memory, manifest.total_bytes) as transports:
                whole = send_version(
                    channel,
                    Offer(manifest, sealed, transports, self._means.codecs, self._bases(manifest), loan=loan),
                    StagedSupply(manifest, staged.memory, staged.checksums, self._base, share),
                    self.counts,
                    go_timeout_s=self._slot_timeout_s + self._stall_s,
                    encoder=self._encoder,
                    give_up=give_up,
                    agreed=agreed,
                    sent=staged.sent,
                )
            whole = whole or self._others_came(channel, staged, manifest, current)
        if not sealed:
            with self._changed:
                self._owed.clear()  # a newer version will be visible, so no earlier sealed one is waited for
        return sealed

    def _others_came(self, channel: Channel, staged: Staged, manifest: Manifest, current: Callable[[], bool]) -> bool:
        """Wait until the shares of other publishers are there too. False: not yet; offer this one again, it may be gone.

        Raises:
            VersionSuperseded: a newer version has taken its place, here or there.
            RelayUnreachable: another relay is the master now.
        """
        deadline = self._machine.now() + _OFFER_AGAIN_S
        while True:
            answer = channel.request({"op": "versions"}, self._stall_s)
            keys, sealed = _keys(answer.get("versions")), _keys(answer.get("sealed"))
            if manifest.key in keys or manifest.key in sealed:
                return True
            with self._changed:
                if staged.manifest is not manifest or any(stamp > manifest.stamp for _, stamp in keys):
                    raise VersionSuperseded(f"version {manifest.version} was superseded before all of it was there")
                if not current():
                    raise RelayUnreachable("retargeted")
                late = self._machine.now() > deadline
                # While it is sent, its memory must not be taken.
                staged.state = StagedState.PUSHING if late else StagedState.SENT
                if late:
                    return False
                self._changed.notify_all()
                self._changed.wait(_LOOK_S)

    def owe_reveal(self, version: int) -> None:
        """A version is to be seen that may be on a relay already, sealed, though its push is not over.

        If a newer one takes its place here before it is offered again, the relay would wait for its reveal for good.
        """
        with self._changed:
            if (key := self._sealed.get(version)) is not None:
                self._owed[key] = None
                _trim(self._owed)
                self.revealed(key)

    def revealed(self, key: tuple[int, int]) -> None:
        """Note that the master was told to reveal a version; the next master must be told again."""
        with self._changed:
            self._revealed[key] = None
            _trim(self._revealed)

    def cut(self) -> None:
        """End the connection under the thread that pushes."""
        with self._changed:
            if self._channel is not None:
                self._channel.shutdown()

    def _reveal_owed(self, channel: Channel) -> None:
        with self._changed:
            owed = list(self._owed)
        for version, stamp in owed:
            try:
                channel.request({"op": "reveal", "version": version, "stamp": stamp}, self._stall_s)
            except VersionRetired:  # it is not there; the next master may have it
                continue
            with self._changed:
                self._owed.pop((version, stamp), None)

    def _retire_left(self, channel: Channel) -> None:
        """Retire what a trainer that died has left sealed on a relay that is new to this one."""
        sealed = _keys(channel.request({"op": "versions"}, self._stall_s).get("sealed"))
        with self._changed:
            left = [list(key) for key in sealed if key not in self._sealed.values()]
        if left:
            channel.request({"op": "retire", "keys": left}, self._stall_s)
        self._looked = True

    def _bases(self, manifest: Manifest) -> tuple[tuple[int, int], ...]:
        """Versions of the same layout that are staged, and were pushed before."""
        with self._changed:
            held = [s.manifest for s in self._staged if s.manifest and s.state is StagedState.HELD]
            return tuple(other.key for other in held if other.same_layout(manifest) and other.key != manifest.key)

    def _base(self, key: tuple[int, int]) -> memoryview | None:
        """The bytes of such a version, as long as no new one is copied over them."""
        with self._changed:
            for staged in self._staged:
                if staged.manifest and staged.state is StagedState.HELD and staged.manifest.key == key:
                    return staged.memory.view
            return None

    def _newest_stamp(self, channel: Channel) -> int:
        newest = channel.request({"op": "versions"}, self._stall_s).get("newest_stamp")
        if type(newest) is not int:
            raise ProtocolError(f"{channel.peer} did not tell its newest stamp")
        return newest

    def _open(self, address: str, current: Callable[[], bool]) -> Channel:
        with self._changed:
            if self._channel is not None and address == self._address and not self._channel.readable(0):
                return self._channel
        self.drop()
        channel, welcome = connect(
            self._machine, address, token=self._token, timeout_s=HANDSHAKE_S, stall_s=self._stall_s
        )
        with self._changed:
            self._looked = False
            self._channel, self._address, self._nonce = channel, address, str(welcome.get("nonce"))
            self._owed |= self._revealed
            if not current():
                raise RelayUnreachable("retargeted")
        return channel

    def drop(self) -> None:
        """End the connection."""
        with self._changed:
            if self._channel is not None:
                self._channel.close()
                self._channel = None


def _keys(listed: Any) -> list[tuple[int, int]]:
    return [tuple(key) for key in listed] if isinstance(listed, list) else []


def _trim(remembered: dict[Any, Any]) -> None:
    while len(remembered) > _REMEMBERED:
        del remembered[next(iter(remembered))]
