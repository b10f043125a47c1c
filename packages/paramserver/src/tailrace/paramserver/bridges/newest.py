"""Which version a bridge takes when its user names none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.paramserver.clients.reader import RelayReader
from tailrace.paramserver.errors import VersionNotYet, VersionRetired
from tailrace.paramserver.machine.host import HOST

_POLL_S = 0.05


@contextmanager
def lease_version(
    reader: RelayReader, version: int | None, *, timeout_s: float, hold_s: float = 300.0
) -> Iterator[WeightLease]:
    """A lease on a version, or on the newest visible one.

    Args:
        reader: a reader of the relay.
        version: its number; None takes the newest, and waits until there is one.
        timeout_s: how long to wait for it to become visible.
        hold_s: how long the relay keeps it for us.

    Raises:
        VersionNotYet: it did not become visible in time.
        ParamServerError: what `RelayReader.lease` raises.
    """
    deadline = HOST.now() + timeout_s
    if version is not None:
        with reader.lease(version, timeout_s=timeout_s, hold_s=hold_s) as weights:
            yield weights
        return
    while True:
        newest = reader.latest()
        remaining = deadline - HOST.now()
        if newest is None:
            if remaining <= 0:
                raise VersionNotYet(f"no version became visible on {reader.address} in {timeout_s:.3g} s")
            HOST.sleep(min(_POLL_S, remaining))
            continue
        entered = False
        try:
            with reader.lease(newest, timeout_s=max(0.0, remaining), hold_s=hold_s) as weights:
                entered = True
                yield weights
        except VersionRetired:
            if entered or remaining <= 0:  # a newer one took its place before it was leased: take that one
                raise
            continue
        return
