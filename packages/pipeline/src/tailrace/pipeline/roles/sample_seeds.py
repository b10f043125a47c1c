"""The seed of each sample: what an engine draws follows from the run's seed, whatever else runs beside it."""

from __future__ import annotations

import hashlib


def noise_seed(run: int, draw: int, sample: int, kept: int) -> int:
    """The seed of a trajectory's noise from its `kept`-th response token on: from 0 to 2**63 - 1, the same on every machine."""
    digest = hashlib.blake2b(f"{run} {draw} {sample} {kept}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
