"""A replica that comes late: it pulls from a relay, as by default, or from another replica (`relay.mode = "peer"`).

Each turn has a fresh replica with memory that was not used before. Chunks travel on the relays' own connections, as they would
between machines; the third reads the relay of its own machine, which is what `relay` is where each machine has one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

from tailrace.paramserver import Publisher, RelayProcess, RelayReader, fetch, new_token, relay_status

from . import model

RELAY, PEER, HERE = "from a relay elsewhere", "from a replica elsewhere", "from the relay of its machine"


@dataclass(frozen=True)
class Late:
    """What a late replica took, over the turns.

    Args:
        how: whom it pulled from.
        seconds, low_s, high_s: until its tensors could be read, verified: median, lowest, highest.
        nbytes: bytes that were sent to it.
        ratio, ratio_low, ratio_high: seconds over those from a relay elsewhere in the same turn.
    """

    how: str
    seconds: float
    low_s: float
    high_s: float
    nbytes: int
    ratio: float
    ratio_low: float
    ratio_high: float


def measured(nbytes: int, repeats: int) -> list[Late]:
    """Pulls of one version of the model, in turns."""
    token, total = new_token(), model.total_bytes(nbytes)
    apart = {"transports": [], "codecs": []}  # as between machines
    name = f"bench-late-{os.getpid()}"
    with (
        RelayProcess.start(f"{name}-relay", token=token, **apart) as relay,
        RelayProcess.start(f"{name}-peer", token=token, pullers=1, **apart) as peer,
    ):
        with Publisher(relay.address, token=token) as publisher:
            publisher.publish(1, model.on(memoryview(model.arena(total)), nbytes).items())
            publisher.wait(1, 120)
        fetch(peer.address, 1, [relay.address], token=token, timeout_s=120)

        def from_relay() -> tuple[float, int]:
            with _reading(relay.address, token, same_host=False) as (reader, seconds):
                return seconds(), reader.transfers["bytes_received"]

        def from_peer() -> tuple[float, int]:
            with RelayProcess.start(f"{name}-own", token=token, replace=True, **apart) as own:
                with _reading(own.address, token, same_host=True) as (_, seconds):
                    took = seconds(lambda: fetch(own.address, 1, [peer.address], token=token, timeout_s=120))
                return took, relay_status(own.address, token=token).transfers["bytes_received"]

        def here() -> tuple[float, int]:
            with _reading(relay.address, token, same_host=True) as (_, seconds):
                return seconds(), 0

        ways: dict[str, Callable[[], tuple[float, int]]] = {RELAY: from_relay, PEER: from_peer, HERE: here}
        found: dict[str, list[tuple[float, int]]] = {how: [] for how in ways}
        for turn in range(repeats + 1):  # the first turn does not count
            for how in ways if turn % 2 == 0 else reversed(ways):
                found[how].append(ways[how]())
    return [_row(how, turns[1:], found[RELAY][1:]) for how, turns in found.items()]


@contextmanager
def _reading(address: str, token: str, *, same_host: bool) -> Iterator[tuple[RelayReader, Callable[..., float]]]:
    """A fresh reader, and a function that has the version come and says how long it took until it could be read."""
    with RelayReader(address, token=token, same_host=same_host) as reader:
        _ = reader.same_host  # connected, as a replica is

        def seconds(first: Callable[[], Any] = lambda: None) -> float:
            start = time.perf_counter()
            first()
            with reader.lease(1, timeout_s=120):
                return time.perf_counter() - start

        yield reader, seconds


def _row(how: str, turns: Sequence[tuple[float, int]], beside: Sequence[tuple[float, int]]) -> Late:
    took = [seconds for seconds, _ in turns]
    ratios = [seconds / other for seconds, (other, _) in zip(took, beside, strict=True)]
    sent = max(nbytes for _, nbytes in turns)
    return Late(how, median(took), min(took), max(took), sent, median(ratios), min(ratios), max(ratios))


def printed(rows: Sequence[Late], nbytes: int) -> None:
    print(f"\nA late replica and a version of {nbytes / 2**20:.0f} MiB")
    print(
        f"  {'':<46} {'s':>7} {'lowest-highest':>16}   {'copies sent':>11}   {'of a relay':>10} {'lowest-highest':>15}"
    )
    for row in rows:
        spread, beside = f"{row.low_s:.3f}-{row.high_s:.3f}", f"{row.ratio_low:.2f}-{row.ratio_high:.2f}"
        print(
            f"  {row.how:<46} {row.seconds:>7.3f} {spread:>16}   {row.nbytes / nbytes:>11.2f}   {row.ratio:>10.2f} {beside:>15}"
        )
