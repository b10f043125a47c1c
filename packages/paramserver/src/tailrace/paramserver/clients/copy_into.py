"""Copies tensors of a version into the caller's own, and verifies every chunk that they touch.

A chunk's checksum covers all its bytes in order, and tensors begin and end anywhere in it. So a verified copy goes through a
chunk from its first byte to its last: what belongs to a wanted tensor is copied and hashed where it was copied to, the
rest (padding, tensors that nobody asked for) is hashed where it lies. Chunks without a wanted tensor are not read at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from tailrace.paramserver.clients.targets import TensorTarget, target
from tailrace.paramserver.copying import Address, Hasher, joined, move
from tailrace.paramserver.errors import ChunkDamaged, ManifestInvalid
from tailrace.paramserver.manifest import Manifest


def copy_tensors(
    manifest: Manifest,
    view: memoryview,
    checksums: Sequence[int] | Mapping[int, int],
    targets: Mapping[str, Any],
    *,
    verify: bool,
) -> None:
    """Copy named tensors of a version.

    Args:
        manifest: the version's layout.
        view: its bytes.
        checksums: the checksums of its chunks.
        targets: for names of the version (tied ones too): torch tensors, `RawTensor`s or writable buffers of the same dtype
            and shape. A plain buffer of bytes stands for a tensor of its size.
        verify: compare the chunks with their checksums.

    Raises:
        ManifestInvalid: a name is not in the version, or its target does not fit; nothing was written.
        ChunkDamaged: a chunk differs from its checksum. The targets may hold anything.
    """
    with ExitStack() as held:
        start = held.enter_context(Address(view)).start
        wanted = _resolve(manifest, targets, held)
        if verify:
            for index, inside in _by_chunk(manifest, wanted).items():
                _copy_chunk(manifest, view, start, index, inside, checksums[index])
        else:
            moves = [
                (first.address, start + first.spec.offset, first.spec.nbytes)
                for first, *_ in wanted
                if first.address is not None
            ]
            for into, origin, nbytes in joined(moves):
                move(into, origin, nbytes)
        for first, *others in wanted:
            origin = start + first.spec.offset if first.address is None else first.address
            for item in others if first.address is not None else (first, *others):
                if item.address is not None:
                    move(item.address, origin, item.spec.nbytes)
                elif item.write is not None:
                    item.write(view)


def _resolve(manifest: Manifest, targets: Mapping[str, Any], held: ExitStack) -> list[list[TensorTarget]]:
    """The targets of each wanted tensor, by offset. A tied tensor may have several; those in memory come first."""
    specs = {spec.name: spec for spec in manifest.tensors}
    by_tensor = dict[str, list[TensorTarget]]()
    for name, value in targets.items():
        spec = specs.get(manifest.tied.get(name, name))
        if spec is None:
            raise ManifestInvalid(
                f"version {manifest.version} has no tensor {name!r}, expected one of its {len(specs)}: "
                f"{', '.join(list(specs)[:5])}, ..."
            )
        by_tensor.setdefault(spec.name, []).append(target(spec, value, held))
    found = [sorted(same, key=lambda item: item.address is None) for same in by_tensor.values()]
    # An empty tensor may share its offset with the next one, and needs nothing.
    return sorted((same for same in found if same[0].spec.nbytes), key=lambda same: same[0].spec.offset)


def _copy_chunk(
    manifest: Manifest,
    view: memoryview,
    start: int,
    index: int,
    inside: list[tuple[TensorTarget, int, int]],
    expected: int,
) -> None:
    offset, nbytes = manifest.chunk(index)
    hasher, position = Hasher(), offset
    for item, first, last in inside:
        hasher.skip(view[position:first])
        if item.address is None:
            hasher.skip(view[first:last])
        else:
            hasher.copy(item.address + first - item.spec.offset, start + first, last - first)
        position = last
    hasher.skip(view[position : offset + nbytes])
    if (found := hasher.value()) != expected:
        names = [item.spec.name for item, _, _ in inside]
        raise ChunkDamaged(
            f"chunk {index} of version {manifest.version} (bytes {offset} to {offset + nbytes}, with "
            f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}) has the checksum "
            f"{found:016x}, expected {expected:016x}; the targets hold a mixture: copy the version again"
        )


def _by_chunk(manifest: Manifest, wanted: list[list[TensorTarget]]) -> dict[int, list[tuple[TensorTarget, int, int]]]:
    """For every chunk with a wanted tensor, in order: the tensors in it, and the bytes that they occupy."""
    found = dict[int, list[tuple[TensorTarget, int, int]]]()
    for same in wanted:
        spec = same[0].spec
        end = spec.offset + spec.nbytes
        for index in range(spec.offset // manifest.chunk_bytes, -(-end // manifest.chunk_bytes)):
            offset, nbytes = manifest.chunk(index)
            found.setdefault(index, []).append((same[0], max(spec.offset, offset), min(end, offset + nbytes)))
    return found
