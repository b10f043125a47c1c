"""A pull from a relay over TCP, beside the kernel's own limit: `sendfile` to `recv_into` between two processes."""

from __future__ import annotations

import time

from tailrace.paramserver import RelayReader

from . import model
from .contenders import Contender
from .raw_tcp import RawTcp

RAW = "raw sendfile to recv_into"


def contenders(address: str, token: str, nbytes: int) -> list[Contender]:
    """The raw pair and ours, which is always verified. Both receive into memory that was used before."""
    total = model.total_bytes(nbytes)
    raw = RawTcp(total, memoryview(model.arena(total)))
    reader = RelayReader(address, token=token, same_host=False, transports=())

    def once() -> float:
        start = time.perf_counter()
        with reader.lease(1):
            return time.perf_counter() - start

    return [
        Contender(RAW, total, raw.once, close=raw.close),
        Contender("pull over TCP, verified", total, once, RAW, reader.close),
    ]
