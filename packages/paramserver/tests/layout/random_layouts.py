"""Random models and layouts, and a slow way to say where each element belongs. Used by the tests in this folder."""

import itertools
import random

from tailrace.paramserver.layout import GlobalTensor, Layout, LocalBuffer, Piece, Shard
from tailrace.paramserver.manifest import DTYPES

NAMES = ("uint8", "bfloat16", "float32", "float64")


def random_tensors(rng: random.Random) -> list[GlobalTensor]:
    return [
        GlobalTensor(
            f"layer{index}.weight",
            rng.choice(NAMES),
            tuple(rng.randint(0 if rng.random() < 0.03 else 1, 7) for _ in range(rng.randint(0, 3))),
        )
        for index in range(rng.randint(1, 5))
    ]


def random_cuts(rng: random.Random, size: int, parts: int) -> list[tuple[int, int]]:
    """A dimension in up to `parts` intervals of random sizes; some of them may be missing because they are empty."""
    edges = [0, *sorted(rng.randint(0, size) for _ in range(parts - 1)), size]
    return [(a, b) for a, b in itertools.pairwise(edges) if a < b]


def random_layout(rng: random.Random, tensors: list[GlobalTensor], prefix: str, ranks: int | None = None) -> Layout:
    """Every tensor cut in random boxes, each box on one or several random ranks, in buffers of their own or shared ones."""
    names = [f"{prefix}{index}" for index in range(ranks or rng.randint(1, 5))]
    held: dict[str, list[tuple[GlobalTensor, tuple]]] = {name: [] for name in names}
    for tensor in tensors:
        if 0 in tensor.shape:
            continue
        boxes = list(itertools.product(*(random_cuts(rng, size, rng.randint(1, 3)) for size in tensor.shape)))
        for box in boxes:
            for rank in rng.sample(names, rng.randint(1, len(names))):
                held[rank].append((tensor, box))
    shards = {}
    for rank, items in held.items():
        buffers, stacks = [], {}
        for number, (tensor, box) in enumerate(items):
            extent = tuple(stop - start for start, stop in box)
            if rng.random() < 0.4:  # several boxes of one kind in one buffer, one dimension more, as experts are
                stacks.setdefault((tensor.dtype, extent), []).append((tensor, box))
                continue
            pad = tuple(
                (rng.randint(0, 2), rng.randint(0, 2)) for _ in extent
            )  # padding around it, as vocabularies have
            shape = tuple(before + size + after for (before, after), size in zip(pad, extent, strict=True))
            at = tuple(before for before, _ in pad)
            buffers.append(LocalBuffer(f"{tensor.name}@{number}", tensor.dtype, shape, (Piece(tensor.name, box, at),)))
        for (dtype, extent), members in stacks.items():
            pieces = tuple(Piece(t.name, box, (index, *(0,) * len(extent))) for index, (t, box) in enumerate(members))
            buffers.append(LocalBuffer(f"stack.{dtype}.{extent}", dtype, (len(members), *extent), pieces))
        shards[rank] = Shard(tuple(buffers))
    return Layout(tuple(tensors), shards)


def element_bytes(tensor: GlobalTensor, index: tuple[int, ...], version: int = 0) -> bytes:
    """Bytes of an element that no other element of the test's model has, as far as its size allows."""
    seed = f"{tensor.name}{index}{version}"
    return random.Random(seed).randbytes(DTYPES[tensor.dtype])


def elements(box):
    return itertools.product(*(range(start, stop) for start, stop in box))


def positions(buffer: LocalBuffer, piece: Piece):
    """(index in the tensor, byte offset in the buffer) of every element of a piece, by counting."""
    size = DTYPES[buffer.dtype]
    leading = len(buffer.shape) - len(piece.box)
    for index in elements(piece.box):
        place = list(piece.at)
        for dimension, (i, (start, _)) in enumerate(zip(index, piece.box, strict=True)):
            place[leading + dimension] += i - start
        flat = 0
        for i, length in zip(place, buffer.shape, strict=True):
            flat = flat * length + i
        yield index, flat * size


def empty_memory(shard: Shard, fill: int = 0xEE) -> dict[str, bytearray]:
    memory = {}
    for buffer in shard.buffers:
        size = DTYPES[buffer.dtype]
        for length in buffer.shape:
            size *= length
        memory[buffer.name] = bytearray([fill]) * size
    return memory


def full_memory(layout: Layout, rank: str, fill: int = 0xEE) -> dict[str, bytearray]:
    """What the rank's buffers must hold, element by element; padding is `fill`."""
    memory = empty_memory(layout.shards[rank], fill)
    for buffer in layout.shards[rank].buffers:
        for piece in buffer.pieces:
            tensor = layout.tensor[piece.tensor]
            for index, offset in positions(buffer, piece):
                data = element_bytes(tensor, index)
                memory[buffer.name][offset : offset + len(data)] = data
    return memory
