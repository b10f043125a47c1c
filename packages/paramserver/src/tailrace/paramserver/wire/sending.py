"""Sending one version over one connection: the same from publisher to relay, relay to relay, and relay to reader.

    sender -> receiver   the offer (see `agreement`)
    receiver -> sender   {"have": true}, or what it lacks once a slot is free, or an error
    sender -> receiver   the chunks that it lacks, each as soon as the sender has it, the first of those first;
                         or stop, if the sender expects no more soon
    receiver -> sender   {"complete": true}; {"again": [[first, end], ...]} for chunks that came damaged, which are then
                         sent again, raw; {"partial": true} after a stop; or an error

The last message also tells the sender that nobody refers to its memory any longer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tailrace.paramserver.codec.choose import LinkEncoder
from tailrace.paramserver.errors import ProtocolError, RelayTimeout, VersionSuperseded
from tailrace.paramserver.transport.protocol import INLINE
from tailrace.paramserver.wire.agreement import Offer, OfferAnswer, from_ranges
from tailrace.paramserver.wire.channel import Channel, TrafficCounts

#: How often a chunk may come damaged before the receiver gives the transfer up.
ROUNDS = 3
_POLL_S = 0.25


class SendableMemory(Protocol):
    """Bytes that are a buffer here and, if `fd` is not negative, a file to the kernel."""

    @property
    def fd(self) -> int:
        """File descriptor of the same bytes."""
        ...

    @property
    def view(self) -> memoryview:
        """The bytes."""
        ...


class Supply(Protocol):
    """The chunks of a version that someone sends."""

    @property
    def memory(self) -> SendableMemory:
        """The version's bytes. Those of a chunk do not change once `next` has named it, until the transfer is over."""
        ...

    def next(self, wanted: list[int]) -> int | None:
        """Which of the wanted chunks to send now, as a position in the list: the first that is there.

        May block until one is. None: none will be there soon.
        """
        ...

    def checksum(self, index: int) -> int:
        """The checksum of a chunk that `next` has named."""
        ...

    def base(self, key: tuple[int, int]) -> memoryview | None:
        """The bytes of another version that was offered as a base; None if they are no longer available."""
        ...


def send_version(
    channel: Channel,
    offer: Offer,
    supply: Supply,
    counts: TrafficCounts,
    *,
    go_timeout_s: float,
    encoder: LinkEncoder | None = None,
    give_up: Callable[[], bool] = lambda: False,
    agreed: Callable[[OfferAnswer | None], None] = lambda _: None,
    sent: set[int] | None = None,
) -> bool:
    """Offer a version and send the chunks that the receiver lacks.

    Args:
        channel: an authenticated connection to the receiver.
        offer: the version, and how it can be sent.
        supply: its chunks.
        counts: totals to which everything sent is added.
        go_timeout_s: how long the receiver may take to free a slot.
        encoder: decides which chunks to encode; None encodes none.
        give_up: asked while waiting for the slot; True abandons the offer.
        agreed: called with the receiver's answer; None if it had the version.
        sent: chunks that this sender sent to this receiver before; those of this transfer are added.

    Returns:
        Whether the receiver has all of it now: False after a stop.

    Raises:
        VersionSuperseded: `give_up` said so. The connection is of no use any more.
        ParamServerError: what the receiver answered, or what happened to the connection.
    """
    manifest = offer.manifest
    channel.send(offer.to_wire())
    waited_s = 0.0
    while not channel.readable(_POLL_S):
        waited_s += _POLL_S
        if give_up():
            raise VersionSuperseded(f"version {manifest.version} gave way while {channel.peer} had no free slot")
        if waited_s >= go_timeout_s:
            raise RelayTimeout(f"{channel.peer} did not free a slot for version {manifest.version} in {go_timeout_s} s")
    answer = OfferAnswer.from_wire(channel.answer(channel.stall_s), offer)
    agreed(answer)
    if answer is None:
        return True
    out = _Outgoing(channel, offer, answer, supply, counts, encoder, set() if sent is None else sent)
    wanted, raw = list(answer.missing), False
    for _ in range(ROUNDS):
        while wanted:
            position = supply.next(wanted)
            if position is None:
                channel.send_stop()
                channel.answer(channel.stall_s)
                return False
            out.send(wanted.pop(position), raw)
        reply = channel.answer(channel.stall_s)
        if reply.get("complete") is True:
            return True
        wanted, raw = from_ranges(reply.get("again"), manifest.chunk_count), True
        if not out.ledger.issuperset(wanted):
            raise ProtocolError(f"{channel.peer} asked again for chunks of version {manifest.version} that it had not")
    raise ProtocolError(f"{channel.peer} asked more than {ROUNDS} times for chunks of version {manifest.version}")


class _Outgoing:
    """The chunks of one transfer, sent as it was agreed.

    Args:
        ledger: chunks that were sent to this receiver.
    """

    def __init__(
        self,
        channel: Channel,
        offer: Offer,
        answer: OfferAnswer,
        supply: Supply,
        counts: TrafficCounts,
        encoder: LinkEncoder | None,
        ledger: set[int],
    ) -> None:
        self._channel, self._offer, self._answer, self._supply = channel, offer, answer, supply
        self._counts, self._encoder, self.ledger = counts, encoder, ledger

    def send(self, index: int, raw: bool) -> None:
        """Send a chunk; `raw` if the agreed way failed for it."""
        offset, nbytes = self._offer.manifest.chunk(index)
        value = self._supply.checksum(index)
        if not raw and self._answer.transport != INLINE:
            self._channel.send_ready(index, value, nbytes)
        elif raw or self._answer.codec is None or self._encoder is None:
            self._send_raw(index, value, offset, nbytes)
        else:
            self._send_encoded(self._answer.codec, self._encoder, index, value, offset, nbytes)
        self._counts.chunks_sent += 1
        self._counts.bytes_sent += nbytes
        if index in self.ledger:
            self._counts.chunks_resent += 1
            self._counts.bytes_resent += nbytes
        self.ledger.add(index)

    def _send_raw(self, index: int, value: int, offset: int, nbytes: int) -> None:
        memory = self._supply.memory
        self._channel.send_chunk(index, value, memory.fd, memory.view, offset, nbytes)
        self._counts.payload_sent += nbytes

    def _send_encoded(self, codec: str, encoder: LinkEncoder, index: int, value: int, offset: int, nbytes: int) -> None:
        key, part = self._answer.base, slice(offset, offset + nbytes)
        payload, base = None, None if key is None else self._supply.base(key)
        if key is not None and base is not None:
            payload = encoder.encode(codec, base[part], self._supply.memory.view[part])
            if self._supply.base(key) is None:  # it was given away meanwhile
                payload = None
        if payload is None or len(payload) >= nbytes:
            began = encoder.now()
            self._send_raw(index, value, offset, nbytes)
            encoder.sent_raw(codec, nbytes, encoder.now() - began)
            return
        self._channel.send_encoded(index, value, nbytes, payload)
        self._counts.chunks_encoded += 1
        self._counts.payload_sent += len(payload)
