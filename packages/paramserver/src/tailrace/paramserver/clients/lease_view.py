"""The tensors of one version, by name, which a reader may use during a lease."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tailrace.paramserver.clients.copy_into import copy_tensors
from tailrace.paramserver.clients.needs import Selection
from tailrace.paramserver.dlpack import flat_torch
from tailrace.paramserver.errors import ChunkDamaged, LeaseExpired, ManifestInvalid
from tailrace.paramserver.layout.sharding import GlobalTensor
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.manifest import Manifest, checksum
from tailrace.paramserver.tensors import RawTensor, as_torch


class WeightLease(Mapping[str, Any]):
    """Tensors of one version in order of publication; values are torch tensors, views without a copy.

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
            Such tensors are put together in new memory when they are asked for; what the selection leaves out is zero in it.
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
    ) -> None:
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
            ChunkDamaged: a chunk differs from its checksum; the targets hold a mixture.
            ManifestInvalid: its tensors come in parts.
            LeaseExpired: the lease is over, or was over before the copy was done; the targets may hold a mixture.
        """
        self._check()
        if self._selection is not None:
            raise ManifestInvalid(
                f"version {self.version} is read in parts, expected whole tensors to copy; read them by name"
            )
        copy_tensors(self.manifest, self._view, self._checksums, targets, verify=verify)
        self._check()

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
        for index in range(self.manifest.chunk_count) if self._selection is None else self._selection.chunks:
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
            return self._raw(name).as_torch()
        if self._flat is None:
            self._flat = flat_torch(self._view)
        return as_torch(self._specs[name], self._flat)

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
        return RawTensor(tensor.dtype, tensor.shape, self._selection.assembled(name, self._view))

    def _check(self) -> None:
        if self._now() >= self._deadline:
            raise LeaseExpired(f"the lease on version {self.version} is over; lease longer (hold_s) or renew in time")
