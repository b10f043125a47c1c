"""A version cut into buckets of whole tensors, for a server that takes one bucket at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tailrace.paramserver.bridges.errors import WeightsMismatch
from tailrace.paramserver.clients.lease_view import WeightLease
from tailrace.paramserver.layout.shards import GlobalTensor


def named(weights: WeightLease) -> Iterator[tuple[str, GlobalTensor]]:
    """Every name and its tensor, those of a tied one too: servers skip the names that they have tied themselves."""
    specs = weights.tensors
    for name, stored in [(name, name) for name in weights] + list(weights.tied.items()):
        if specs[stored].nbytes:
            yield name, specs[stored]


def buckets_of(
    tensors: Iterable[tuple[str, GlobalTensor]], bucket_bytes: int
) -> Iterator[list[tuple[str, GlobalTensor]]]:
    """The tensors in order, in buckets of at most so many bytes; a larger tensor has one for itself."""
    bucket, size = list[tuple[str, GlobalTensor]](), 0
    for name, spec in tensors:
        if bucket and size + spec.nbytes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, spec))
        size += spec.nbytes
    if bucket:
        yield bucket


def check_names(weights: WeightLease, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Compare a version with names and shapes that it must have.

    Raises:
        WeightsMismatch: one is missing or of another shape.
    """
    found = {name: spec.shape for name, spec in named(weights)}
    for name, shape in expected.items():
        if found.get(name) != tuple(shape):
            raise WeightsMismatch(
                f"{name!r}: found {list(found[name]) if name in found else 'nothing'} in version {weights.version}, "
                f"expected {list(shape)}"
            )
