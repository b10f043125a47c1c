"""Does every core compute what it should? Large fleets have cores that sometimes do not, and nothing else tells."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tailrace.faulttol.machine_checks.check import UnfitError

_SIDE = 24
_ENTRY = (
    1 << 20
)  # sums of 24 products of two such numbers are whole numbers below 2**53, so they are exact in floating point
_HASHES = 1000
_LAST_HASH = "2ea1477696860a46f2501fefc28e578b9be9c8bf596740b7eeeb3c834ec29b37"


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Compute known results on each core that the process may use. Plugin ``arithmetic``.

    A product of matrices of whole numbers is the same in floating point as in integers, and the last of a chain of hashes is
    known.

    Args:
        repeats: how often each core computes.
    """

    repeats: int = 5

    def run(self, directory: Path) -> str:  # noqa: ARG002 - the protocol's argument
        """See `MachineCheck.run`."""
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
        with _affinity_kept():
            for core in cores:
                if hasattr(os, "sched_setaffinity"):
                    os.sched_setaffinity(0, {core})
                for repeat in range(self.repeats):
                    _compute(core, repeat)
        return f"{len(cores)} cores computed what they should, {self.repeats} times each"


@contextmanager
def _affinity_kept() -> Iterator[None]:
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


def _compute(core: int, repeat: int) -> None:
    draw = random.Random(repeat)
    left, right = ([[draw.randrange(_ENTRY) for _ in range(_SIDE)] for _ in range(_SIDE)] for _ in range(2))
    if product(_floating(left), _floating(right)) != product(left, right):
        raise UnfitError(f"core {core}: a product in floating point differs from that in integers, expected the same")
    digest = b"tailrace"
    for _ in range(_HASHES):
        digest = hashlib.sha256(digest).digest()
    if digest.hex() != _LAST_HASH:
        raise UnfitError(f"core {core}: hash {_HASHES} of a chain is {digest.hex()[:8]}…, expected {_LAST_HASH[:8]}…")


def product(left: Sequence[Sequence[float]], right: Sequence[Sequence[float]]) -> list[list[float]]:
    """The product of two matrices, in the arithmetic of their entries."""
    columns = list(zip(*right, strict=True))
    return [[sum(a * b for a, b in zip(row, column, strict=True)) for column in columns] for row in left]


def _floating(matrix: list[list[int]]) -> list[list[float]]:
    return [[float(entry) for entry in row] for row in matrix]
