"""The tensors of one version, by name, which a reader may use during a lease, and their copies into the caller's own.

A chunk's checksum covers all its bytes in order, and tensors begin and end anywhere in it. So a verified copy goes through a
chunk from its first byte to its last: what belongs to a wanted tensor is copied and hashed where it was copied to, the
rest (padding, tensors that nobody asked for) is hashed where it lies. Chunks without a wanted tensor are not read at all.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tailrace.contracts import SlicedWeights, WeightSlice
from tailrace.paramserver.clients.needs import Selection
from tailrace.paramserver.clients.spare import SpareMemory, pinned, writable
from tailrace.paramserver.copying import Address, Hasher, joined, move
from tailrace.paramserver.dlpack import flat_torch
from tailrace.paramserver.errors import ChunkDamaged, LayoutMismatch, LeaseExpired, ManifestInvalid
from tailrace.paramserver.layout.sharding import GlobalTensor
from tailrace.paramserver.layout.strided import flat
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.manifest import Manifest, TensorSpec, byte_size, checksum
from tailrace.paramserver.tensors import RawTensor, as_torch, source


@dataclass(frozen=True, slots=True)
class TensorTarget:
    """The place to which one tensor is copied.

    Args:
        spec: the tensor.
        address: the address of its first byte in this process's memory; None if it is elsewhere, or has gaps.
        write: for such a tensor, a function that copies it from the version's bytes.
    """

    spec: TensorSpec
    address: int | None
    write: Callable[[memoryview], None] | None = None


def target(spec: TensorSpec, value: Any, held: ExitStack) -> TensorTarget:
    """The target that a caller gave for a tensor: a torch tensor, a `RawTensor` or a writable buffer (numpy array).

    Args:
        held: keeps the buffer where it is for as long as it is open.

    Raises:
        ManifestInvalid: its dtype, shape or size is not that of the tensor, or it cannot be written.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _torch_target(torch, spec, value)
    found = source(spec.name, value)
    if (found.dtype, found.shape) != (spec.dtype, spec.shape) and not _bytes_of(spec, found.dtype, found.shape):
        raise _differs(spec, found.dtype, found.shape)
    if getattr(getattr(value, "dtype", None), "isnative", True) is False:
        raise ManifestInvalid(
            f"{spec.name!r}: found a target of {value.dtype}, expected the byte order of this machine"
        )
    buffer = value.data if isinstance(value, RawTensor) else value
    try:
        return TensorTarget(spec, held.enter_context(Address(buffer, writable=True)).start)
    except BufferError as error:
        raise ManifestInvalid(f"{spec.name!r}: found a buffer that cannot be written ({error})") from error


def _torch_target(torch: Any, spec: TensorSpec, tensor: Any) -> TensorTarget:
    dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if (dtype, shape) != (spec.dtype, spec.shape):
        raise _differs(spec, dtype, shape)
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise ManifestInvalid(f"{spec.name!r}: found a {tensor.layout} tensor on {tensor.device}, expected a dense one")
    tensor = tensor.detach()  # a parameter is written like its `.data`: no autograd, no gradient
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        return TensorTarget(spec, int(tensor.data_ptr()))

    def write(version: memoryview) -> None:
        tensor.copy_(as_torch(spec, flat_torch(version)))

    return TensorTarget(spec, None, write)


def _bytes_of(spec: TensorSpec, dtype: str, shape: tuple[int, ...]) -> bool:
    """Whether a plain byte buffer is meant for the tensor's bytes."""
    return dtype == "uint8" and shape == (spec.nbytes,)


def _differs(spec: TensorSpec, dtype: str, shape: tuple[int, ...]) -> ManifestInvalid:
    return ManifestInvalid(
        f"{spec.name!r}: found a target of {dtype} {list(shape)}, expected {spec.dtype} {list(spec.shape)}"
    )


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


class WeightLease(Mapping[str, Any]):
    """Tensors of one version in order of publication; values are torch tensors, views without a copy.

    A tensor that the ranks of a trainer published in parts is put together when it is asked for, in memory that is used again
    once nothing refers to it; where torch uses a GPU, that memory is page-locked. Who can write parts of a tensor asks for
    `slices` and saves that copy.

    On the relay's host the views are on shared memory that other processes read too: never write to them (the memory is
    mapped read-only, a write kills the process), and copy what must outlive the lease.

    Args:
        manifest: the version's layout.
        view: the version's bytes.
        checksums: the checksums of its chunks.
        deadline: monotonic time at which the lease ends, infinite for a local copy.
        extend: asks the relay for so many more seconds; False if the lease is lost.
        now: the clock of `deadline`.
        selection: what of the version is read, where ranks of a trainer published their own shards, or not all is needed.
            What the selection leaves out is zero in a tensor that is put together.
        whole: memory for those.
    """

    def __init__(
        self,
        manifest: Manifest,
        view: memoryview,
        checksums: Sequence[int] | Mapping[int, int],
        deadline: float = math.inf,
        extend: Callable[[float], bool] = lambda _: True,
        now: Callable[[], float] = HOST.now,
        selection: Selection | None = None,
        whole: SpareMemory | None = None,
    ) -> None:
        self._whole = whole or SpareMemory()
        self.manifest = manifest
        self._view, self._checksums = view, checksums
        self._deadline, self._extend, self._now = deadline, extend, now
        self._selection = selection
        self._specs = {spec.name: spec for spec in manifest.tensors}
        self._flat: Any = None

    @property
    def version(self) -> int:
        """The version's number."""
        return self.manifest.version

    @property
    def digest(self) -> str:
        """Sixteen hexadecimal digits of the checksums of all chunks: the same wherever this publication is held whole.

        Raises:
            LayoutMismatch: only the part that is needed was pulled over the network.
        """
        if len(self._checksums) < self.manifest.chunk_count:
            raise LayoutMismatch(
                f"found {len(self._checksums)} chunks of version {self.version} in the part that was pulled, expected all "
                f"{self.manifest.chunk_count} for its digest: lease it by a reader without needs"
            )
        checksums = [self._checksums[index] for index in range(self.manifest.chunk_count)]
        return f"{checksum(b''.join(value.to_bytes(8, 'big') for value in checksums)):016x}"

    @property
    def tied(self) -> Mapping[str, str]:
        """Other names of tensors that share memory with one in here, and that one's name."""
        return self.manifest.tied

    @property
    def deadline(self) -> float:
        """Time at which the lease ends, in seconds of `time.monotonic`."""
        return self._deadline

    def raw(self) -> dict[str, RawTensor]:
        """The same tensors without torch: dtype, shape and a read-only view of the bytes.

        Raises:
            LeaseExpired: the lease is over.
        """
        self._check()
        return {name: self._raw(name) for name in self}

    def copy_into(self, targets: Mapping[str, Any], *, verify: bool = True) -> None:
        """Copy tensors into the caller's own, which outlive the lease. Only the named ones are read.

        On the relay's host this with ``lease(..., verify=False)`` is a whole pull: every byte is copied once and
        checked where it was copied to.

        Args:
            targets: for names of tensors (tied ones too): torch tensors or parameters, `RawTensor`s or writable buffers
                (numpy arrays) of the same dtype and shape. A plain buffer of bytes stands for a tensor of its size.
            verify: compare every chunk that has a part of them with its checksum.

        Raises:
            ManifestInvalid: a name is not in the version, or its target does not fit; nothing was written.
            ChunkDamaged: a chunk differs from its checksum; the targets hold a mixture; of tensors in parts nothing was
                written.
            LeaseExpired: the lease is over, or was over before the copy was done; the targets may hold a mixture.
        """
        self._check()
        if self._selection is not None:
            places = [(self.tied.get(name, name), self._place(name, value)) for name, value in targets.items()]
            if verify:
                self._verify(self._selection.chunks_of(name for name, _ in places))
            for name, memory in places:
                self._selection.assemble(name, self._view, memory)
        else:
            copy_tensors(self.manifest, self._view, self._checksums, targets, verify=verify)
        self._check()

    def slices(self) -> Iterator[WeightSlice]:
        """The tensors in the parts in which they lie in the version, views without a copy: a whole one is one slice.

        Raises:
            LeaseExpired: the lease is over.
        """
        for name in self:
            if self._selection is None or self._selection.whole(name) is not None:
                tensor = self[name]
                yield WeightSlice(name, tuple(tensor.shape), (), tensor)
                continue
            whole = self._selection.tensors[name].shape
            for spec, box in self._selection.slices[name]:
                self._check()
                part = as_torch(spec, self._bytes())
                own = tuple(slice(a - at, b - at) for (a, b), (at, _) in zip(box, spec.box, strict=True))
                yield WeightSlice(name, whole, tuple(slice(a, b) for a, b in box), part[own])

    def renew(self, hold_s: float) -> None:
        """Extend the lease to a number of seconds from now.

        Raises:
            LeaseExpired: the relay has given the memory away.
        """
        self._check()
        if not self._extend(hold_s):
            raise LeaseExpired(f"the lease on version {self.version} is lost; lease a version again")
        if self._deadline < math.inf:
            self._deadline = self._now() + hold_s

    def verify(self) -> None:
        """Compare every chunk that is read with its checksum.

        Raises:
            ChunkDamaged: one differs.
        """
        self._verify(range(self.manifest.chunk_count) if self._selection is None else self._selection.chunks)

    def _verify(self, chunks: Iterable[int]) -> None:
        for index in chunks:
            expected = self._checksums[index]
            offset, nbytes = self.manifest.chunk(index)
            found = checksum(self._view[offset : offset + nbytes])
            if found != expected:
                raise ChunkDamaged(
                    f"chunk {index} of version {self.version} has the checksum {found:016x} in memory, "
                    f"expected {expected:016x}; pull the version again"
                )

    def end(self) -> None:
        """No tensor is handed out any more."""
        self._deadline = -math.inf

    def __getitem__(self, name: str) -> Any:
        self._check()
        if self._selection is not None and self._selection.whole(name) is None:
            return self._assembled(self._selection, name)
        return as_torch(self._specs[name], self._bytes())

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs if self._selection is None else self._selection.slices)

    def __len__(self) -> int:
        return len(self._specs if self._selection is None else self._selection.slices)

    @property
    def tensors(self) -> Mapping[str, GlobalTensor]:
        """Dtype and whole shape of every tensor, by name."""
        if self._selection is not None:
            return self._selection.tensors
        return {name: GlobalTensor(name, spec.dtype, spec.shape) for name, spec in self._specs.items()}

    def _raw(self, name: str) -> RawTensor:
        if self._selection is None or (spec := self._selection.whole(name)) is not None:
            spec = self._specs[name]
            return RawTensor(spec.dtype, spec.shape, self._view[spec.offset : spec.offset + spec.nbytes])
        tensor = self._selection.tensors[name]
        memory = self._whole.take(byte_size(tensor.dtype, tensor.shape), self._selection.left_out(name))
        self._selection.assemble(name, self._view, writable(memory))
        return RawTensor(tensor.dtype, tensor.shape, memory)

    def _assembled(self, selection: Selection, name: str) -> Any:
        tensor = selection.tensors[name]
        nbytes = byte_size(tensor.dtype, tensor.shape)
        if selection.left_out(name) is not None or (memory := pinned(nbytes)) is None:
            return self._raw(name).as_torch()
        selection.assemble(name, self._view, memory)
        return as_torch(TensorSpec(name, tensor.dtype, tensor.shape, 0, nbytes), memory)

    def _bytes(self) -> Any:
        """The version as a flat torch tensor."""
        if self._flat is None:
            self._flat = flat_torch(self._view)
        return self._flat

    def _place(self, name: str, value: Any) -> Any:
        """The bytes of a caller's target for a tensor that comes in parts.

        Raises:
            ManifestInvalid: there is no such tensor, or the target does not fit.
        """
        assert self._selection is not None
        tensor = self._selection.tensors.get(self.manifest.tied.get(name, name))
        if tensor is None:
            raise ManifestInvalid(f"version {self.version} has no tensor {name!r}, expected one of its {len(self)}")
        nbytes = byte_size(tensor.dtype, tensor.shape)
        spec = TensorSpec(name, tensor.dtype, tensor.shape, 0, nbytes)
        with ExitStack() as held:
            target(spec, value, held)
        try:
            return flat(value.data if isinstance(value, RawTensor) else value, name, nbytes, writable=True)
        except LayoutMismatch as error:
            raise ManifestInvalid(str(error)) from error

    def _check(self) -> None:
        if self._now() >= self._deadline:
            raise LeaseExpired(f"the lease on version {self.version} is over; lease longer (hold_s) or renew in time")


class LeasedWeights(SlicedWeights):
    """The tensors of a lease for an engine: whole or, if it asks for them, the parts in which they lie in the version.

    Args:
        lease: the lease.
        origin: where other processes of this machine can read the version, see `SlicedWeights.origin`.
    """

    def __init__(self, lease: WeightLease, origin: object | None = None) -> None:
        self._lease, self._origin = lease, origin

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return iter(self._lease.items())

    def slices(self) -> Iterator[WeightSlice]:
        """The slices, see `WeightLease.slices`."""
        return self._lease.slices()

    def origin(self) -> object | None:
        """Where other processes read the version."""
        return self._origin
