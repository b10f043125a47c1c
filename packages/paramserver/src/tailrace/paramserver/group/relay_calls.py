"""Calls of relays: the order of a chain, a pull from another relay, and each relay's report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.paramserver.errors import (
    ChunkDamaged,
    ParamServerError,
    ProtocolError,
    RelayTimeout,
    RelayUnreachable,
    SourceBusy,
    VersionNotYet,
    VersionRetired,
)
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.relays.server import STALL_S
from tailrace.paramserver.wire.authentication import connect


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A relay's account of itself.

    Args:
        name: the relay's name.
        pid: its process.
        versions: visible versions, oldest publication first.
        receiving: versions that are arriving, with how far they are.
        leases: versions that are being read, with who reads them.
        next: address of the next relay of the chain, the first one in a tree.
        forward_error: why the next relays do not have everything, or None.
        hops: addresses of all next relays, and why each does not have everything, or None.
        partial: versions whose transfer broke off, with how far they are; another sender can go on with them.
        sealed: versions that are whole but not to be shown yet.
        transfers: totals sent and received since its start (see `TrafficCounts`).
        copies: copies of weights in its memory: one for each slot that has had a version, and one that a publisher fills.
        bytes: bytes of these.
    """

    name: str
    pid: int
    versions: tuple[int, ...]
    receiving: dict[str, str]
    leases: dict[str, str]
    next: str | None
    forward_error: str | None
    hops: dict[str, str | None]
    partial: dict[str, str]
    sealed: tuple[int, ...]
    transfers: dict[str, int]
    copies: int
    bytes: int


def set_chain(addresses: Sequence[str], *, token: str, timeout_s: float = 10.0) -> None:
    """Make these relays a chain in this order, the first being the master (Laminar, section 4.3).

    Every relay is told its next hop, the last first, and then sends on what its next hop lacks. To repair a chain, call
    this with the relays that live; put one with the newest version first, and `Publisher.retarget` to it.

    Args:
        addresses: the relays' addresses, each once.
        token: shared secret.
        timeout_s: deadline in seconds for each relay.

    Raises:
        TypeError: found one address, not several.
        ValueError: an address is there twice.
        RelayUnreachable: a relay does not answer; those behind it are rewired already, those before it are not.
    """
    _check_several("addresses", addresses)
    if len(set(addresses)) != len(addresses):
        raise ValueError(f"found a relay twice in the chain {list(addresses)}, expected each once")
    for index in reversed(range(len(addresses))):
        following = list(addresses[index + 1 : index + 2])
        _ask(addresses[index], {"op": "set_next", "addresses": following}, token, timeout_s)


_GRACE_S = 5.0
_SOURCE_FAILED = (RelayUnreachable, RelayTimeout, ProtocolError, ChunkDamaged, VersionRetired)


def fetch(
    address: str, version: int, sources: Sequence[str], *, token: str, timeout_s: float, patient: bool = True
) -> str:
    """Have a relay pull a version from others that show it (RobustRL, section 5.2.1). Where one breaks off, the next goes on.

    What arrived is kept, and the next source sends the rest. One that serves somebody else is asked again.

    Args:
        address: the relay that lacks it.
        version: the version's number. If the relay has it already, no source is asked.
        sources: addresses of other relays, best first.
        token: shared secret.
        timeout_s: deadline in seconds for all of it.
        patient: whether one that may still get the version is asked again; otherwise it counts as one that failed.

    Returns:
        The source with which it was complete; "" if the relay had it already.

    Raises:
        VersionNotYet: it was not complete in time.
        RelayUnreachable, RelayTimeout, ProtocolError, ChunkDamaged, VersionRetired: of the last source, if all failed for good.
        SlotBusy, NotEnoughSharedMemory: the relay has no room for it.
        TypeError: found one address as `sources`, not several.
    """
    _check_several("sources", sources)
    if version in relay_status(address, token=token, timeout_s=timeout_s).versions:
        return ""
    deadline = HOST.now() + timeout_s
    while True:
        later = False
        failure: ParamServerError | None = None
        for source in sources:
            left = max(0.0, deadline - HOST.now())
            message: dict[str, object] = {"op": "fetch", "version": version, "source": source, "whole": True}
            try:
                _ask(address, {**message, "timeout_s": left}, token, left + _GRACE_S)
            except SourceBusy:
                later = True
            except VersionNotYet as error:
                later, failure = later or patient, error
            except _SOURCE_FAILED as error:
                failure = error
            else:
                return source
            if HOST.now() >= deadline:
                raise VersionNotYet(
                    f"version {version} was not complete on the relay {address} in {timeout_s:.3g} s, from {', '.join(sources)}"
                )
        if not later:
            raise failure or RelayUnreachable(f"found no source of version {version}, expected a relay that has it")


def _check_several(name: str, addresses: Sequence[str]) -> None:
    if isinstance(addresses, str):  # which is a sequence of texts, too
        raise TypeError(f"{name}: found the text {addresses!r:.80}, expected a list of addresses")


def relay_status(address: str, *, token: str, timeout_s: float = 10.0) -> RelayStatus:
    """Ask a relay how it is.

    Raises:
        RelayUnreachable: it does not answer.
    """
    answer = _ask(address, {"op": "status"}, token, timeout_s)
    try:
        return RelayStatus(
            name=str(answer["name"]),
            pid=int(answer["pid"]),
            versions=tuple(int(version) for version in answer["versions"]),
            receiving=dict(answer["receiving"]),
            leases=dict(answer["leases"]),
            next=next(iter(answer["hops"]), None),
            forward_error=answer["forward_error"],
            hops=dict(answer["hops"]),
            partial=dict(answer["partial"]),
            sealed=tuple(int(version) for version in answer["sealed"]),
            transfers={str(what): int(count) for what, count in answer["transfers"].items()},
            copies=int(answer["copies"]),
            bytes=int(answer["bytes"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"the relay {address} sent a status without or with a wrong {error}") from error


def _ask(address: str, message: dict[str, object], token: str, timeout_s: float) -> dict[str, Any]:
    channel, _ = connect(HOST, address, token=token, timeout_s=timeout_s, stall_s=min(timeout_s, STALL_S))
    try:
        return channel.request(message, timeout_s)
    finally:
        channel.close()
