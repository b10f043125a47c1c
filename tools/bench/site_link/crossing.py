"""Bytes over the link for each version, with 1, 2 and 4 replicas beyond it, beside replicas that each pull for themselves."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from site_link.datacenters import Datacenters
from site_link.versions import CHUNK_BYTES, Words, encoded_bytes, made_up

from tailrace.paramserver import RawTensor, RelayReader

LIMIT = 1.10  # encoded copies
_RATE = 40e6
_DEADLINE_S = 120.0
_WARM = 2  # the first version has no base, and slots fill for the first time


@dataclass(frozen=True)
class Crossing:
    """Bytes over the link for one version, as medians over versions.

    Args:
        weights: which kind of versions.
        replicas: beyond the link.
        version_bytes: of a whole copy.
        encoded_bytes: of an encoded copy.
        link_bytes: on the wire, headers and heartbeats included.
        copies: link bytes over encoded bytes, the largest of all versions.
        naive_bytes: where each replica pulls from the trainer's relay for itself.
        exact: whether every replica read every version bit for bit.
    """

    weights: str
    replicas: int
    version_bytes: int
    encoded_bytes: int
    link_bytes: int
    copies: float
    naive_bytes: int
    exact: bool


def crossing(weights: str, replicas: int, nbytes: int, share: float, far: float, repeats: int) -> Crossing:
    """Publish versions in which `share` of the words change, and count what crosses."""
    link, encoded, copies, exact = [], [], [], True
    with Datacenters(_RATE, replicas, codec="delta", chunk_bytes=CHUNK_BYTES) as there:
        readers = [there.reader(replica) for replica in range(replicas)]
        before: Words | None = None
        for version, words in zip(range(_WARM + repeats), made_up(nbytes, share, far), strict=False):
            crossed = there.crossed_bytes()
            there.publisher.publish(version, [("w", _tensor(words))])
            read = [_reads(reader, version, words) for reader in readers]
            exact = exact and all(read)
            crossed = there.crossed_bytes() - crossed
            if version >= _WARM and before is not None:
                encoded.append(encoded_bytes(before, words))
                link.append(crossed)
                copies.append(crossed / encoded[-1])
            before = words
    naive = _naive(replicas, nbytes, share, far)
    return Crossing(
        weights,
        replicas,
        nbytes,
        int(statistics.median(encoded)),
        int(statistics.median(link)),
        max(copies),
        naive,
        exact,
    )


def _naive(replicas: int, nbytes: int, share: float, far: float) -> int:
    """Bytes for a version where every replica pulls it from the trainer's relay, all at once."""
    with Datacenters(_RATE, 0, codec="none", chunk_bytes=CHUNK_BYTES) as there:
        readers = [there.reader(replica, across=True) for replica in range(replicas)]
        words = next(made_up(nbytes, share, far))
        crossed = there.crossed_bytes()
        there.publisher.publish(0, [("w", _tensor(words))])
        read: list[bool] = []
        threads = [threading.Thread(target=lambda r=r: read.append(_reads(r, 0, words))) for r in readers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_DEADLINE_S)
        if read != [True] * replicas:
            raise AssertionError("a replica that pulls for itself did not read the version")
        return there.crossed_bytes() - crossed


def crossings(
    kinds: Sequence[tuple[str, float, float]], counts: Sequence[int], nbytes: int, repeats: int
) -> list[Crossing]:
    """All kinds of versions, with every number of replicas."""
    return [crossing(name, count, nbytes, share, far, repeats) for name, share, far in kinds for count in counts]


def _tensor(words: Words) -> RawTensor:
    return RawTensor("bfloat16", words.shape, memoryview(words).cast("B"))


def _reads(reader: RelayReader, version: int, words: Words) -> bool:
    """Wait until the replica has a version; whether it is the one that was published."""
    with reader.lease(version, timeout_s=_DEADLINE_S) as held:
        return bool(bytes(held.raw()["w"].data) == words.tobytes())
