"""Whether an engine serves the weights that were published.

    weights on their way ──take──► WeightSample ──boxes──► engine.digests ──► check: the first parameter that differs

Of each matrix a few runs of elements are kept as they were published, at places that a seed chooses. The engine reads the same
elements back from its own parameters, after it has cast, cut, fused and repacked them, and tells their digest. So a layer that
was not loaded, a shard of another rank, or weights of another version show at once, whatever the loader believes.

An adapter's matrices are compared like weights, B times the adapter's scale, since engines keep the two as one.

Neighbouring versions may differ in few elements (bfloat16 weights at a small learning rate): with a share f of a matrix changed
and n of its elements compared, a stale matrix passes with probability (1 - f)^n. By default n is 32,768 in bfloat16.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.contracts import AdapterWeights, WeightBox, WeightDigest, WeightSlice, element_digest
from tailrace.rollout.adapters import matrix_name
from tailrace.rollout.errors import WeightsDifferError

DIGEST_BYTES = 65_536
"""Bytes of each matrix that are compared, unless a run says otherwise."""
_RUNS, _RUNS_IN_STACK = 16, 2

Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class WeightComparison:
    """How much of the weights a replica compares after each pull.

    Args:
        nbytes: bytes of each matrix as it was published, at seeded places; a smaller one is compared whole. A parameter of more
            than two dimensions is a stack of matrices.
        required: whether a version fails of which the engine cannot read back every parameter. Otherwise it is served, and a
            warning says so once.
    """

    nbytes: int = DIGEST_BYTES
    required: bool = False


def sampled_boxes(shape: Sequence[int], elements: int, seed: str) -> list[Box]:
    """The places at which a parameter is compared.

    Args:
        shape: its shape.
        elements: most elements of each of its matrices; all of a smaller one.
        seed: chooses the places. The same seed gives the same ones.

    Returns:
        Boxes in the parameter: one of all of it, or 16 spread over its rows; 2 in each matrix of a stack, such as a layer's
        experts.
    """
    matrix = tuple(shape[-2:])
    if math.prod(matrix) <= elements:
        return [tuple((0, size) for size in shape)]
    drawn, runs = random.Random(seed), _RUNS if len(shape) <= 2 else _RUNS_IN_STACK
    rows, columns = matrix if len(matrix) == 2 else (1, *matrix)
    wide = min(columns, max(1, elements // runs))
    high = min(rows, max(1, elements // runs // wide))
    boxes = []
    for place in itertools.product(*(range(size) for size in shape[:-2])):
        for run in range(runs):
            row = _start(drawn, rows, high, run, runs if rows >= runs else 0)
            column = _start(drawn, columns, wide, run, 0 if rows >= runs else runs)
            box = ((row, row + high), (column, column + wide))[-len(matrix) :]
            boxes.append((*((index, index + 1) for index in place), *box))
    return list(dict.fromkeys(boxes))


def _start(drawn: random.Random, size: int, length: int, run: int, runs: int) -> int:
    """Where a run begins in a dimension: in its own part of it or, with 0 runs, anywhere."""
    first, last = (run * size // runs, (run + 1) * size // runs) if runs else (0, size)
    first = min(first, size - length)
    return drawn.randint(first, max(first, last - length))


def digest_of(elements: Any) -> str:
    """The `element_digest` of a torch tensor."""
    import torch

    flat = elements.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
    return element_digest(flat.numpy())


@dataclass(slots=True)
class _Kept:
    """Elements as they were published, on the CPU, and what an engine multiplies them by in its own dtype."""

    box: Box
    scale: float = 1.0
    elements: Any = None
    filled: int = 0

    def take(self, tensor: Any, here: Box) -> None:
        """Take what it has of a tensor, which is a box of the parameter."""
        common = common_box(self.box, here)
        if common is None:
            return
        found = tensor[_inside(common, here)]
        if common == self.box:
            self.elements, self.filled = found.to("cpu", copy=True), _volume(common)
            return
        if self.elements is None:
            self.elements = tensor.new_empty(_extent(self.box), device="cpu")
        self.elements[_inside(common, self.box)] = found.to("cpu")
        self.filled += _volume(common)

    def digest(self, part: Box, dtype: Any) -> str:
        """The digest of some of them in an engine that has this dtype."""
        elements = (self.elements if part == self.box else self.elements[_inside(part, self.box)]).to(dtype)
        return digest_of(elements if self.scale == 1.0 else elements * self.scale)


class WeightSample:
    """Elements of one version, kept as it was published.

    Args:
        version: the version's number, for messages.
        nbytes: see `WeightComparison`.
        seed: chooses the places.
    """

    def __init__(self, version: int, nbytes: int, seed: str) -> None:
        self._version, self._nbytes, self._seed = version, nbytes, seed
        self._kept: dict[str, list[_Kept]] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}

    def __bool__(self) -> bool:
        """Whether it has seen any weights."""
        return bool(self._kept)

    def take_adapter(self, adapter: AdapterWeights) -> None:
        """Keep what the sample has of an adapter's matrices."""
        for name, (a, b) in adapter.layers.items():
            self.take(WeightSlice(matrix_name(name, "A"), tuple(a.shape), (), a))
            self.take(WeightSlice(matrix_name(name, "B"), tuple(b.shape), (), b), adapter.scale)

    def take(self, piece: WeightSlice, scale: float = 1.0) -> None:
        """Keep what the sample has of a slice. A parameter's slices come in any order.

        Args:
            scale: what an engine multiplies the parameter by.
        """
        name, shape, index, tensor = piece
        if name not in self._kept:
            elements = self._nbytes // tensor.element_size()
            boxes = sampled_boxes(shape, elements, f"{self._seed} {name}")
            self._kept[name] = [_Kept(box, scale) for box in boxes if _volume(box)]
            self._shapes[name] = tuple(shape)
        here, tensor = _box(index, shape), tensor.detach()
        for kept in self._kept[name]:
            kept.take(tensor, here)

    def boxes(self) -> list[WeightBox]:
        """What the engine is asked for."""
        return [WeightBox(name, self._shapes[name], kept.box) for name, held in self._kept.items() for kept in held]

    def check(self, digests: Iterable[WeightDigest]) -> float:
        """Compare with what an engine answered to `boxes`. Parameters that it cannot read back are left out.

        Returns:
            The share of all elements that was compared.

        Raises:
            WeightsDifferError: elements differ, or the engine has not told of some; names the first parameter.
        """
        import torch

        answers: dict[str, list[WeightDigest]] = {}
        for digest in digests:
            answers.setdefault(digest.name, []).append(digest)
        compared = 0
        for name, held in self._kept.items():
            if any(digest.unreadable for digest in answers.get(name, ())):
                continue
            compared += sum(_volume(kept.box) for kept in held)
            # A stack of experts has hundreds of boxes: only parts of a box are held against others, those of its matrix.
            whole: dict[Box, list[WeightDigest]] = {kept.box: [] for kept in held}
            near: dict[Box, list[WeightDigest]] = {}
            for digest in answers.get(name, ()):
                found = whole.get(digest.box)
                (near.setdefault(_matrix(digest.box, held), []) if found is None else found).append(digest)
            for kept in held:
                if kept.filled < _volume(kept.box):
                    raise self._error(name, kept.box, "found no published elements there")
                parts, told = whole[kept.box], None
                if not parts or near:
                    told = torch.full(kept.elements.shape, bool(parts))
                    parts = parts + [
                        part for part in near.get(_matrix(kept.box, held), ()) if _contains(kept.box, part.box)
                    ]
                for part in parts:
                    if told is not None:
                        told[_inside(part.box, kept.box)] = True
                    expected = kept.digest(part.box, getattr(torch, part.dtype))
                    if part.digest != expected:
                        answer = f"found the digest {part.digest} in worker {part.worker}"
                        raise self._error(name, part.box, f"{answer}, expected {expected} as published")
                if told is not None and not told.all():
                    raise self._error(name, kept.box, "no worker has all of them")
        return compared / max(1, sum(map(math.prod, self._shapes.values())))

    def _error(self, name: str, box: Box, what: str) -> WeightsDifferError:
        where = ", ".join(f"{first}:{last}" for first, last in box)
        return WeightsDifferError(f"parameter {name!r} of version {self._version}, elements [{where}]: {what}", name)


def _box(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """The box of a slice's index, which may leave out the last dimensions."""
    given = [part.indices(size)[:2] for part, size in zip(index, shape, strict=False)]
    return (*given, *((0, size) for size in shape[len(given) :]))


def common_box(first: Box, second: Box) -> Box | None:
    """What two boxes have in common; None if nothing."""
    box = []
    for (a, b), (c, d) in zip(first, second, strict=True):
        start, stop = max(a, c), min(b, d)
        if start >= stop:
            return None
        box.append((start, stop))
    return tuple(box)


def _contains(outer: Box, box: Box) -> bool:
    return all(first <= start and stop <= last for (first, last), (start, stop) in zip(outer, box, strict=True))


def _matrix(box: Box, held: Sequence[_Kept]) -> Box:
    """Which matrix of a parameter a box lies in. A parameter that is compared whole has one box, in which all others lie."""
    return box[:-2] if len(held) > 1 else ()


def _inside(box: Box, outer: Box) -> tuple[slice, ...]:
    return tuple(slice(start - at, stop - at) for (start, stop), (at, _) in zip(box, outer, strict=True))


def _extent(box: Box) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _volume(box: Box) -> int:
    return math.prod(_extent(box))


def local_boxes(shard: Any, boxes: Iterable[WeightBox]) -> Iterator[tuple[str, Box, Any, tuple[Any, ...]]]:
    """Find boxes of parameters in the buffers of a rank, which keeps its parts of them cut and fused.

    Args:
        shard: the rank's, of a `tailrace.paramserver.layout.Layout`.

    Yields:
        The parameter's name, the part of a box that the rank has, its buffer, and the index in it.
    """
    for name, _, box in boxes:
        for buffer, piece in shard.pieces.get(name, ()):
            common = common_box(box, piece.box)
            if common is None:
                continue
            lead = piece.at[: len(piece.at) - len(box)]
            shifts = [at - start for at, (start, _) in zip(piece.at[len(lead) :], piece.box, strict=True)]
            yield (
                name,
                common,
                buffer,
                (*lead, *(slice(a + by, b + by) for (a, b), by in zip(common, shifts, strict=True))),
            )


def read_whole(parameters: Any, boxes: Sequence[WeightBox]) -> Iterator[WeightDigest]:
    """The digests of boxes where an engine has each parameter whole and under its own name.

    Args:
        parameters: a mapping of names to torch tensors. What it lacks is not told of, which `WeightSample.check` finds.
    """
    for name, _, box in boxes:
        if name not in parameters:
            continue
        here = parameters[name][tuple(slice(start, stop) for start, stop in box)]
        yield WeightDigest(name, box, str(here.dtype).removeprefix("torch."), digest_of(here))
