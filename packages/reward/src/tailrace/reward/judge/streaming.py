"""Runs a decoder whose layers do not all fit on the device: the others are streamed from host memory, in step with computing.

    host memory:  every layer as one flat tensor (pinned for CUDA)
    device:       resident layers | slot 0 | slot 1
                  while layer i computes in one slot, the next streamed layer is copied into the other

The model's own forward pass runs, with hooks before and after each layer, so the results are those of the resident model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import prod
from typing import Any, Protocol

import torch

from tailrace.reward.judge.memory import WeightSizes, residency_order


class Copier(Protocol):
    """Carries layers into slots, which are buffers on the device, by number.

    A streamer calls ``begin`` once a pass, then for each slot ``copy``, ``wait``, ``release`` in turn; ``wait`` returns when
    computing may read the buffer, ``release`` says that what was queued so far is its last use.
    """

    def begin(self) -> None: ...
    def copy(self, slot: int, target: torch.Tensor, source: torch.Tensor) -> None: ...
    def wait(self, slot: int) -> None: ...
    def release(self, slot: int) -> None: ...

    def drain(self) -> None:
        """Return when no copy is under way any more."""

    def close(self) -> None: ...


class InlineCopier:
    """Copies when it is told to and returns when that is done: the computing waits for every copy."""

    def begin(self) -> None:
        pass

    def copy(self, slot: int, target: torch.Tensor, source: torch.Tensor) -> None:  # noqa: ARG002
        target.copy_(source)
        if target.is_cuda:
            torch.cuda.current_stream(target.device).synchronize()

    def wait(self, slot: int) -> None:
        pass

    def release(self, slot: int) -> None:
        pass

    def drain(self) -> None:
        pass

    def close(self) -> None:
        pass


class ThreadCopier:
    """Copies in a thread beside the computing, which on a CPU has ended when a slot is released."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tailrace-judge-copy")
        self._copies: dict[int, Future[Any]] = {}

    def begin(self) -> None:
        pass

    def copy(self, slot: int, target: torch.Tensor, source: torch.Tensor) -> None:
        self._copies[slot] = self._thread.submit(target.copy_, source)

    def wait(self, slot: int) -> None:
        self._copies.pop(slot).result()

    def release(self, slot: int) -> None:
        pass

    def drain(self) -> None:
        for slot in list(self._copies):
            self.wait(slot)

    def close(self) -> None:
        self._thread.shutdown()


class StreamCopier:
    """Copies from pinned memory on a CUDA stream of its own; events order it with the computing, and the host never waits."""

    def __init__(self, device: torch.device, slots: int) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._filled = [torch.cuda.Event() for _ in range(slots)]

    def begin(self) -> None:
        # The buffers may be memory that computing has just given back.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def copy(self, slot: int, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
            self._filled[slot].record(self._stream)

    def wait(self, slot: int) -> None:
        torch.cuda.current_stream(self._device).wait_event(self._filled[slot])

    def release(self, slot: int) -> None:  # noqa: ARG002 (all that is queued, the slot's last use included)
        self._stream.wait_event(torch.cuda.current_stream(self._device).record_event())

    def drain(self) -> None:
        self._stream.synchronize()

    def close(self) -> None:
        self.drain()


def copier_for(device: torch.device, slots: int, *, pipelined: bool) -> Copier:
    """The way to copy to a device: beside computing if `pipelined`."""
    if not pipelined:
        return InlineCopier()
    return StreamCopier(device, slots) if device.type == "cuda" else ThreadCopier()


_ALIGNMENT = 256  # bytes; what allocators give, so that kernels take the paths that they take on tensors of their own


class FlatLayer:
    """A layer's parameters and their places in one flat tensor of bytes."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self.parameters = list(layer.parameters())
        self._places: list[tuple[int, int]] = []
        self.bytes = 0
        for parameter in self.parameters:
            count = parameter.numel() * parameter.element_size()
            self._places.append((self.bytes, count))
            self.bytes += -(-count // _ALIGNMENT) * _ALIGNMENT
        self.host = torch.empty(0, dtype=torch.uint8)

    def to_host(self, *, pinned: bool) -> None:
        """Move the weights into one host tensor, from where they are copied as a whole."""
        self.host = torch.empty(self.bytes, dtype=torch.uint8, pin_memory=pinned)
        for parameter, view in zip(self.parameters, self._views(self.host), strict=True):
            view.copy_(parameter.data)
        self.use(self.host)

    def use(self, flat: torch.Tensor) -> None:
        """Let the layer compute with the weights in this tensor, on whatever device."""
        for parameter, view in zip(self.parameters, self._views(flat), strict=True):
            parameter.data = view

    def _views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        return [
            flat[start : start + count].view(parameter.dtype).view(parameter.shape)
            for parameter, (start, count) in zip(self.parameters, self._places, strict=True)
        ]


class LayerStreamer:
    """Keeps some layers on the device and streams the others through slots during each forward pass.

    After `arrange`, the model is called as ever inside `with streamer:`. Not thread-safe.

    Args:
        layers: the decoder's layers, in host memory; they share no weights.
        device: where they compute.
        pipelined: two slots and a prefetch, or one slot and a copy at each layer's turn.
        other_bytes: bytes on the device that are no layer, for `peak_bytes` and the sizes.
    """

    def __init__(
        self, layers: Sequence[torch.nn.Module], device: torch.device, *, pipelined: bool, other_bytes: int
    ) -> None:
        self._device = device
        self._pipelined = pipelined
        self._order = list(residency_order(len(layers)))
        self._flat = [FlatLayer(layer) for layer in layers]
        slots = 2 if pipelined else 1
        self.sizes = WeightSizes(other_bytes, tuple(self._flat[index].bytes for index in self._order), slots)
        self._copier = copier_for(device, slots, pipelined=pipelined)
        self._arranged = False
        self._resident: dict[int, torch.Tensor] = {}
        self._slots: list[torch.Tensor] = []
        self._turns: dict[int, int] = {}  # streamed layer -> its place among the streamed
        self._streamed: list[int] = []
        self.peak_bytes = 0
        """Most bytes of weights that were on the device at once."""
        for index, layer in enumerate(layers):
            self._flat[index].to_host(pinned=device.type == "cuda")
            layer.register_forward_pre_hook(partial(self._before, index))
            layer.register_forward_hook(partial(self._after, index))
        self.arrange(0)

    @property
    def resident(self) -> int:
        """Number of layers that stay on the device."""
        return len(self._resident)

    def arrange(self, resident: int) -> None:
        """Keep this many layers on the device, spread evenly, and stream the others. Not while the model computes."""
        if self._arranged and resident == len(self._resident):
            return
        self._arranged = True
        keep = self._order[:resident]
        self._streamed = sorted(self._order[resident:])
        self._turns = {layer: turn for turn, layer in enumerate(self._streamed)}
        self._slots = []  # what goes is dropped before what comes is allocated
        for index in set(self._resident).difference(keep):
            self._flat[index].use(self._flat[index].host)
            del self._resident[index]
        for index in keep:
            if index not in self._resident:
                self._resident[index] = self._flat[index].host.to(self._device, copy=True)
                self._flat[index].use(self._resident[index])
        largest = max((self._flat[index].bytes for index in self._streamed), default=0)
        for _ in range(min(self.sizes.slots, len(self._streamed))):
            self._slots.append(torch.empty(largest, dtype=torch.uint8, device=self._device))
        self.peak_bytes = max(self.peak_bytes, self.device_bytes())

    def device_bytes(self) -> int:
        """Bytes of weights on the device now: counted from the tensors that are there."""
        held = [*self._resident.values(), *self._slots]
        return self.sizes.fixed_bytes + sum(int(tensor.numel()) for tensor in held)

    def __enter__(self) -> None:
        if self._pipelined:
            self._copier.begin()
            for turn in range(len(self._slots)):
                self._fetch(turn)

    def __exit__(self, *error: object) -> None:
        # After an error in the middle of a pass, copies are under way and a layer may still point into a slot.
        self._copier.drain()
        for index in self._streamed:
            self._flat[index].use(self._flat[index].host)

    def close(self) -> None:
        """End the copying thread."""
        self._copier.close()

    def _fetch(self, turn: int) -> None:
        flat = self._flat[self._streamed[turn]]
        slot = turn % len(self._slots)
        self._copier.copy(slot, self._slots[slot][: flat.bytes], flat.host)

    def _before(self, index: int, module: torch.nn.Module, arguments: Any) -> None:  # noqa: ARG002 (a hook's signature)
        turn = self._turns.get(index)
        if turn is None:
            return
        slot = turn % len(self._slots)
        if not self._pipelined:
            self._fetch(turn)
        self._copier.wait(slot)
        self._flat[index].use(self._slots[slot][: self._flat[index].bytes])

    def _after(self, index: int, module: torch.nn.Module, arguments: Any, output: Any) -> None:  # noqa: ARG002
        turn = self._turns.get(index)
        if turn is None:
            return
        self._flat[index].use(self._flat[index].host)
        self._copier.release(turn % len(self._slots))
        if self._pipelined and turn + len(self._slots) < len(self._streamed):
            self._fetch(turn + len(self._slots))


def flat_bytes(layer: torch.nn.Module) -> int:
    """Bytes of a layer in one flat tensor."""
    return FlatLayer(layer).bytes


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of distinct tensors; one that is there twice, as tied embeddings, counts once."""
    return sum({id(tensor): prod(tensor.shape) * tensor.element_size() for tensor in tensors}.values())
