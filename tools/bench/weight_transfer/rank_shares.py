"""Pulls of a version that 1, 2 or 4 ranks of a trainer published in parts, beside a plain copy into the same warm tensors.

A pull is a lease, verified as in a run, and copies into an engine's tensors: `slices` as an engine that can write parts of a
parameter does, `whole` as one that takes whole tensors, put together in memory that is used again, `fresh` as it was before:
put together in new pages. Page faults are of the whole process during one pull; `grown` is resident memory after all of
them, beyond what it was before the first.
"""

from __future__ import annotations

import os
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.paramserver import Publisher, RelayProcess, RelayReader, RelayUnreachable, new_token, relay_status, shares
from tailrace.paramserver.clients.spare import SpareMemory
from tailrace.paramserver.layout import GlobalTensor, Layout
from tailrace.paramserver.layout.fsdp2 import chunk

from . import model

RANKS = (1, 2, 4)


@dataclass(frozen=True)
class Pulls:
    """What one way of pulling took.

    Args:
        ranks: of the trainer.
        how: slices, whole or fresh.
        seconds, low_s, high_s: median, least and most of a pull.
        over_copy: median over the turns of its seconds to those of the plain copy of the same turn.
        faults: page faults of a pull, median.
        grown_bytes: resident memory that stays.
        publish_s: seconds for which publishing blocks the rank that it blocks longest, median.
        relay_copies, relay_bytes: what the relay holds.
    """

    ranks: int
    how: str
    seconds: float
    low_s: float
    high_s: float
    over_copy: float
    faults: float
    grown_bytes: int
    publish_s: float
    relay_copies: int
    relay_bytes: int


def measured(nbytes: int, repeats: int) -> list[Pulls]:
    """Pulls in turns with plain copies, for each number of ranks."""
    return [row for ranks in RANKS for row in _of(ranks, nbytes, repeats)]


def _of(ranks: int, nbytes: int, repeats: int) -> Iterator[Pulls]:
    import torch

    torch.set_num_threads(1)  # as memcpy in the other tables
    tensors = tuple(GlobalTensor(name, "bfloat16", shape) for name, shape in model.shapes(nbytes))
    weights = {t.name: torch.full(t.shape, 0.5, dtype=torch.bfloat16) for t in tensors}
    mine = {t.name: torch.zeros(t.shape, dtype=torch.bfloat16) for t in tensors}
    token, blocked = new_token(), []
    with ExitStack() as stack:
        relay = stack.enter_context(RelayProcess.start(f"bench-ranks-{os.getpid()}-{ranks}", token=token))
        publishers = [stack.enter_context(Publisher(relay.address, token=token)) for _ in range(ranks)]
        parts = shares(_layout(tensors, ranks)) if ranks > 1 else {}
        for version in (1, 2, 3):
            took = []
            for rank, publisher in enumerate(publishers):
                rows = [(t.name, weights[t.name][slice(*chunk(t.shape[0], ranks, rank))]) for t in tensors]
                began = time.perf_counter()
                if ranks == 1:
                    publisher.publish(version, rows)
                else:
                    publisher.publish(version, rows, share=parts[f"rank{rank}"], stamp=version)
                took.append(time.perf_counter() - began)
            for publisher in publishers:
                _arrived(publisher, relay.address, version)
            blocked.append(max(took))
        reader = stack.enter_context(RelayReader(relay.address, token=token, same_host=True))
        ways: dict[str, Callable[[Any], None]] = {"slices": lambda held: _slices(held, mine)}
        if ranks > 1:
            ways |= {"whole": lambda held: _whole(held, mine), "fresh": lambda held: _fresh(held, mine)}
        held = relay_status(relay.address, token=token)
        for how, take in ways.items():
            _pull(reader, take)  # what is mapped and grows the first time does not count
            before, seconds, copies, faults = _resident(), [], [], []
            for _ in range(repeats):
                began = time.perf_counter()
                for name, tensor in weights.items():
                    mine[name].copy_(tensor)
                copies.append(time.perf_counter() - began)
                took_s, missed = _pull(reader, take)
                seconds.append(took_s)
                faults.append(missed)
            ratio = statistics.median(s / c for s, c in zip(seconds, copies, strict=True))
            spread = (statistics.median(seconds), min(seconds), max(seconds), ratio, statistics.median(faults))
            grown = _resident() - before
            yield Pulls(ranks, how, *spread, grown, statistics.median(blocked), held.copies, held.bytes)
        assert all(bool((tensor == 0.5).all()) for tensor in mine.values())


def _arrived(publisher: Publisher, address: str, version: int) -> None:
    """Wait until a version is on the relay. A push that stood still for a second is offered again."""
    for _ in range(20):
        try:
            publisher.wait(version, 120)
        except RelayUnreachable:
            publisher.retarget(address)
        else:
            return
    raise SystemExit(f"version {version} did not arrive")


def _layout(tensors: tuple[GlobalTensor, ...], ranks: int) -> Layout:
    """Rows of each tensor over the ranks, as FSDP2 cuts them."""
    boxes: dict[str, dict[str, list[Any]]] = {f"rank{rank}": {} for rank in range(ranks)}
    for rank in range(ranks):
        for tensor in tensors:
            first, last = chunk(tensor.shape[0], ranks, rank)
            if first < last:
                boxes[f"rank{rank}"][tensor.name] = [((first, last), *((0, size) for size in tensor.shape[1:]))]
    return Layout.of_boxes(tensors, boxes)


def _pull(reader: RelayReader, take: Callable[[Any], None]) -> tuple[float, int]:
    missed, began = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.perf_counter()
    with reader.lease(3, timeout_s=60) as held:
        take(held)
    return time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - missed


def _slices(held: Any, mine: dict[str, Any]) -> None:
    for name, _, index, tensor in held.slices():
        mine[name][index].copy_(tensor)


def _whole(held: Any, mine: dict[str, Any]) -> None:
    for name, tensor in held.items():
        mine[name].copy_(tensor)


def _fresh(held: Any, mine: dict[str, Any]) -> None:
    for name in held:
        held._whole = SpareMemory(0)
        mine[name].copy_(held[name])


def _resident() -> int:
    status = Path("/proc/self/status").read_text()
    found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return 1024 * int(found["RssAnon"].split()[0])


def printed(rows: list[Pulls], nbytes: int) -> None:
    """The table."""
    print(f"\nA pull of {nbytes / 2**20:.0f} MiB that ranks of a trainer published, verified, into warm tensors")
    heads = ("seconds", "low-high", "of a copy", "faults", "grown MiB", "publish s", "relay")
    print(f"  {'ranks':<14}" + "".join(f"{head:>14}" for head in heads))
    for row in rows:
        figures = (
            f"{row.seconds:.3f}",
            f"{row.low_s:.3f}-{row.high_s:.3f}",
            f"{row.over_copy:.2f}",
            f"{row.faults:.0f}",
            f"{row.grown_bytes / 2**20:.1f}",
            f"{row.publish_s:.3f}",
            f"{row.relay_copies} x {row.relay_bytes / max(1, row.relay_copies) / 2**20:.0f}",
        )
        print(f"  {row.ranks} {row.how:<12}" + "".join(f"{figure:>14}" for figure in figures))
