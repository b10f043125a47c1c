"""A relay pulls a version from another one, which may still be receiving it (RobustRL, section 5.2.1).

So a relay that is not in the tree, or that comes back, gets what it lacks from any relay that has it, and becomes a source
for others with its first chunk.
"""

from __future__ import annotations

from typing import Any

from tailrace.paramserver.errors import RelayTimeout, VersionNotYet
from tailrace.paramserver.relays.context import RelayContext
from tailrace.paramserver.relays.receive import receive_version
from tailrace.paramserver.wire.agreement import Offer
from tailrace.paramserver.wire.authentication import HANDSHAKE_S, connect

_SLICE_S = 1.0  # of a wait for the source
_GRACE_S = 0.5  # for an answer to come back


def fetch_version(version: int | None, source: str, relay: RelayContext, timeout_s: float) -> tuple[int, int]:
    """Get a version from another relay. Its key.

    Args:
        version: its number; None for the newest that the source has, arriving or not.
        source: the other relay's address.
        relay: this one.
        timeout_s: deadline in seconds for all of it.

    Raises:
        RelayTimeout: it was not here in time. What arrived is kept, and another source can go on.
        VersionNotYet, VersionRetired: the source does not have it.
        ParamServerError: what the source answered, or what happened to the connection.
    """
    machine = relay.machine
    deadline = machine.now() + timeout_s
    channel, _ = connect(
        machine,
        source,
        token=relay.token,
        timeout_s=min(HANDSHAKE_S, timeout_s),
        stall_s=min(relay.stall_s, timeout_s),
    )
    try:
        while True:
            remaining = deadline - machine.now()
            if remaining <= 0:
                raise RelayTimeout(f"version {version} did not arrive from {source} in {timeout_s:.3g} s")
            wait_s = min(_SLICE_S, remaining)
            request: dict[str, Any] = {"op": "pull", "version": version, "wait_s": wait_s, "arriving": True}
            try:
                answer = channel.request(request, wait_s + channel.stall_s)
            except VersionNotYet:
                if remaining <= _SLICE_S:
                    raise
                continue
            offer = Offer.from_wire(answer, max_bytes=relay.max_bytes)
            left = max(_GRACE_S, deadline - machine.now())
            if receive_version(channel, offer, relay, slot_timeout_s=left, deadline=deadline):
                return offer.manifest.key
    finally:
        channel.close()
