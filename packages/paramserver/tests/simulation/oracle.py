"""What every byte of every version must be."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Any

from tailrace.paramserver import RawTensor

Contents = dict[str, bytes]


@functools.cache
def _bytes(publisher: int, version: int, tensor: int, size: int) -> bytes:
    """Bytes that tell the version, who published it, and where they belong."""
    return random.Random(f"{publisher} {version} {tensor}").randbytes(size)


def contents(publisher: int, version: int, sizes: tuple[int, ...]) -> Contents:
    """The tensors of a version."""
    return {f"w{i}": _bytes(publisher, version, i, size) for i, size in enumerate(sizes)}


class Oracle:
    """Compares what is shown with what was published."""

    def __init__(self) -> None:
        self._published: dict[int, list[tuple[int, Contents]]] = {}
        self._keys: dict[tuple[int, int], int] = {}

    def publish(self, publisher: int, version: int, sizes: tuple[int, ...]) -> Contents:
        """The weights of a version that goes out now."""
        weights = contents(publisher, version, sizes)
        self._published.setdefault(version, []).append((publisher, weights))
        return weights

    def wrong(self, key: tuple[int, int], found: Mapping[str, bytes]) -> str | None:
        """What is wrong with these tensors, shown as the version and stamp `key`; None if nothing is."""
        candidates = self._published.get(key[0], [])
        for publisher, expected in candidates:
            if found == expected:
                known = self._keys.setdefault(key, publisher)
                return None if known == publisher else f"{key} is of publisher {known} and of {publisher}"
        if not candidates:
            return f"version {key[0]} was never published"
        return f"version {key[0]}: " + "; or ".join(
            f"of publisher {publisher}: {_difference(expected, found)}" for publisher, expected in candidates
        )

    def publisher(self, key: tuple[int, int]) -> int | None:
        """Who published what was shown as this version and stamp."""
        return self._keys.get(key)


def raw_bytes(lease: Mapping[str, Any]) -> Contents:
    """A copy of a lease's tensors."""
    raws: dict[str, RawTensor] = lease.raw()  # type: ignore[attr-defined]
    return {name: bytes(raw.data) for name, raw in raws.items()}


def _difference(expected: Contents, found: Mapping[str, bytes]) -> str:
    if list(expected) != list(found):
        return f"tensors {list(found)} rather than {list(expected)}"
    for name, data in expected.items():
        if len(data) != len(found[name]):
            return f"{name} has {len(found[name])} bytes rather than {len(data)}"
        differ = [i for i, (a, b) in enumerate(zip(data, found[name], strict=True)) if a != b]
        if differ:
            return f"{name} differs in {len(differ)} of {len(data)} bytes, first at {differ[0]}"
    return "equal"
