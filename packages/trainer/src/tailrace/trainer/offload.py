"""Moves a rank's parameters, gradients or optimizer state from its device into pinned host memory and back, in place."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from tailrace.trainer.errors import OffloadedError
from tailrace.trainer.tensor_file import host_memory


class HostParts:
    """What is in host memory. Whoever holds one of its tensors finds it without memory until it is back.

    The host memory of a part stays, for the next time: pinning it takes longer than a copy.

    Args:
        device: where the tensors belong. On a CPU nothing is moved, and the same rules hold.
        moves: whether they are moved; None: unless the device is a CPU.
    """

    def __init__(self, device: torch.device, moves: bool | None = None) -> None:
        self._device = device
        self._moves = device.type != "cpu" if moves is None else moves
        self._away: dict[str, list[tuple[torch.UntypedStorage, Tensor]]] = {}
        self._pages: dict[str, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of host memory that all parts take."""
        return sum(pages.nbytes for pages in self._pages.values())

    def offload(self, part: str, tensors: Iterable[Tensor]) -> int:
        """Move a part that is not away. Returns how many bytes were moved."""
        if part in self._away:
            return 0
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        moved: list[tuple[torch.UntypedStorage, Tensor]] = []
        if self._moves:
            sizes = [storage.nbytes() for storage in storages.values()]
            for storage, host in zip(storages.values(), self._room(part, sum(sizes)).split(sizes), strict=True):
                host.copy_(_bytes(storage), non_blocking=True)
                moved.append((storage, host))
        self._wait()
        for storage, _ in moved:
            storage.resize_(0)
        self._away[part] = moved
        return sum(host.nbytes for _, host in moved)

    def onload(self, part: str) -> int:
        """Move a part back, if it is away. Returns how many bytes were moved."""
        moved = self._away.get(part, [])
        for storage, host in moved:
            storage.resize_(host.nbytes)
            _bytes(storage).copy_(host, non_blocking=True)
        self._wait()
        self._away.pop(part, None)  # only now: if the device had no room for all of it, it is away
        return sum(host.nbytes for _, host in moved)

    def forget(self, part: str) -> None:
        """A part was made anew and is not away."""
        self._away.pop(part, None)

    def require(self, *parts: str) -> None:
        """Refuse what needs a part that is away.

        Raises:
            OffloadedError: one is.
        """
        for part in parts:
            if part in self._away:
                raise OffloadedError(f"found the {part} offloaded, expected `onload([{part!r}])` before they are used")

    def _room(self, part: str, nbytes: int) -> Tensor:
        """The host memory of a part, grown to this size."""
        if part not in self._pages or self._pages[part].nbytes < nbytes:
            self._pages.pop(part, None)
            self._pages[part] = host_memory(nbytes, pinned=self._device.type == "cuda")
        return self._pages[part][:nbytes]

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _bytes(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
