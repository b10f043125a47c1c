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

from tailrace.paramserver.errors import ProtocolError, RelayTimeout, VersionSuperseded
from tailrace.paramserver.transport.registry import INLINE
from tailrace.paramserver.wire.agreement import Answer, Offer
from tailrace.paramserver.wire.channel import Channel
from tailrace.paramserver.wire.counts import Counts
from tailrace.paramserver.wire.ranges import from_ranges

#: How often a chunk may come damaged before the receiver gives the transfer up.
ROUNDS = 3
_POLL_S = 0.25


class Memory(Protocol):
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
    def memory(self) -> Memory:
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

    def encode(self, index: int, codec: str, base: tuple[int, int]) -> bytes | None:
        """The chunk as the codec makes it against that base, or None to send it raw."""
        ...


def send_version(
    channel: Channel,
    offer: Offer,
    supply: Supply,
    counts: Counts,
    *,
    go_timeout_s: float,
    give_up: Callable[[], bool] = lambda: False,
    sent: set[int] | None = None,
) -> bool:
    """Offer a version and send what of it the receiver lacks.

    Args:
        channel: an authenticated connection to the receiver.
        offer: the version, and how it can be sent.
        supply: its chunks.
        counts: what is sent is added to these.
        go_timeout_s: how long the receiver may take to free a slot.
        give_up: asked while waiting for the slot; True abandons the offer.
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
    answer = Answer.from_wire(channel.answer(channel.stall_s), offer)
    if answer is None:
        return True
    ledger = set[int]() if sent is None else sent
    wanted, raw = list(answer.missing), False
    for _ in range(ROUNDS):
        while wanted:
            position = supply.next(wanted)
            if position is None:
                channel.send_stop()
                channel.answer(channel.stall_s)
                return False
            _send_chunk(channel, offer, answer, supply, wanted.pop(position), counts, ledger, raw)
        reply = channel.answer(channel.stall_s)
        if reply.get("complete") is True:
            return True
        wanted, raw = from_ranges(reply.get("again"), manifest.chunk_count), True
        if not ledger.issuperset(wanted):
            raise ProtocolError(f"{channel.peer} asked again for chunks of version {manifest.version} that it had not")
    raise ProtocolError(f"{channel.peer} asked more than {ROUNDS} times for chunks of version {manifest.version}")


def _send_chunk(
    channel: Channel,
    offer: Offer,
    answer: Answer,
    supply: Supply,
    index: int,
    counts: Counts,
    ledger: set[int],
    raw: bool,
) -> None:
    offset, nbytes = offer.manifest.chunk(index)
    value, payload = supply.checksum(index), None
    if not raw and answer.transport != INLINE:
        channel.send_ready(index, value, nbytes)
    else:
        if not raw and answer.codec is not None and answer.base is not None:
            payload = supply.encode(index, answer.codec, answer.base)
        if payload is not None and len(payload) < nbytes:
            channel.send_encoded(index, value, nbytes, payload)
            counts.chunks_encoded += 1
            counts.payload_sent += len(payload)
        else:
            channel.send_chunk(index, value, supply.memory.fd, supply.memory.view, offset, nbytes)
            counts.payload_sent += nbytes
    counts.chunks_sent += 1
    counts.bytes_sent += nbytes
    if index in ledger:
        counts.chunks_resent += 1
        counts.bytes_resent += nbytes
    ledger.add(index)
