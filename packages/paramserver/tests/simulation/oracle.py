"""What every byte of every version must be."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from typing import Any

from tailrace.paramserver import RawTensor

Contents = dict[str, bytes]


@functools.cache
def _bytes(publisher: int, version: int, tensor: int, size: int, alike: bool) -> bytes:
    """Bytes that tell the version, who published it, and where they belong; or few of them, for a codec to find."""
    own = random.Random(f"{publisher} {version} {tensor}").randbytes(size)
    if not alike:
        return own
    same = random.Random(f"{tensor}").randbytes(size)
    return b"".join((own if start % 96 == 0 else same)[start : start + 8] for start in range(0, size, 8))


class Oracle:
    """Compares what is shown with what was published."""

    def __init__(self, *, alike: bool = False) -> None:
        self._alike = alike
        self._sealed: set[tuple[int, int]] = set()
        self._published: dict[int, list[tuple[int, Contents]]] = {}
        self._keys: dict[tuple[int, int], int] = {}

    def publish(self, publisher: int, version: int, sizes: tuple[int, ...], *, sealed: bool = False) -> Contents:
        """The weights of a version that goes out now."""
        weights = {f"w{i}": _bytes(publisher, version, i, size, self._alike) for i, size in enumerate(sizes)}
        if sealed:
            self._sealed.add((publisher, version))
        self._published.setdefault(version, []).append((publisher, weights))
        return weights

    def reveal(self, publisher: int, version: int) -> None:
        """The version may be seen from now on."""
        self._sealed.discard((publisher, version))

    def sealed(self, publisher: int) -> list[int]:
        """Versions that a publisher has not revealed, in order."""
        return sorted(version for who, version in self._sealed if who == publisher)

    def wrong(self, key: tuple[int, int], found: Mapping[str, bytes]) -> str | None:
        """What is wrong with these tensors, shown as the version and stamp `key`; None if nothing is."""
        candidates = self._published.get(key[0], [])
        for publisher, expected in candidates:
            if found == expected:
                if (publisher, key[0]) in self._sealed:
                    return f"version {key[0]} of publisher {publisher} is still sealed"
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
