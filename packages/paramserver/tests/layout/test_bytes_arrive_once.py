"""Whatever the two layouts: every element that a rank needs arrives there exactly once, with the right bytes."""

import random
import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver.layout import LayoutMismatch, copy, message, pack, reshard_plan, unpack
from tailrace.paramserver.manifest import DTYPES

from .random_layouts import elements, empty_memory, full_memory, positions, random_layout, random_tensors


def arrived(plan):
    """How often each (receiver, tensor, element) arrives, and that its sender holds it."""
    count = Counter()
    for slice_, sender, receiver in plan:
        held = {index for _, piece in plan.source.shards[sender].pieces[slice_.tensor] for index in elements(piece.box)}
        for index in elements(slice_.box):
            assert index in held, f"{sender} does not hold {index} of {slice_.tensor}"
            count[receiver, slice_.tensor, index] += 1
    return count


def needed(layout):
    return Counter(
        (rank, name, index)
        for rank, shard in layout.shards.items()
        for name, held in shard.pieces.items()
        for _, piece in held
        for index in elements(piece.box)
    )


def move_all(plan, sources, targets):
    """Every message packed and unpacked; copies within a rank in one step. Returns the bytes that crossed."""
    crossed = 0
    for sender, receiver in plan.pairs:
        parcel = message(plan, sender, receiver)
        assert all(move.at % move.itemsize == 0 for move in parcel.moves)  # torch reads no unaligned elements
        if sender == receiver:
            copy(parcel, sources[sender], targets[receiver])
            continue
        packed = bytearray(parcel.nbytes)
        pack(parcel, sources[sender], packed)
        unpack(parcel, bytes(packed), targets[receiver])
        crossed += parcel.nbytes
    return crossed


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 2**32), st.booleans())
def test_bytes_arrive_exactly_once_and_are_right(seed, same_processes):
    rng = random.Random(seed)
    tensors = random_tensors(rng)
    source = random_layout(rng, tensors, "worker")
    target = random_layout(rng, tensors, "worker" if same_processes else "replica")
    plan = reshard_plan(source, target)
    assert arrived(plan) == needed(target)
    sources = {rank: full_memory(source, rank) for rank in source.shards}
    targets = {rank: empty_memory(shard, 0x11) for rank, shard in target.shards.items()}
    crossed = move_all(plan, sources, targets)
    assert targets == {rank: full_memory(target, rank, 0x11) for rank in target.shards}, f"seed {seed}"
    missing = needed(target) - needed(source)  # what a rank needs and does not hold already
    assert crossed == plan.bytes_moved == sum(DTYPES[target.tensor[name].dtype] for _, name, _ in missing)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_torch_tensors_and_buffers_move_alike(seed):
    torch = pytest.importorskip("torch")
    rng = random.Random(seed)
    tensors = random_tensors(rng)
    source, target = random_layout(rng, tensors, "worker"), random_layout(rng, tensors, "replica")
    plan = reshard_plan(source, target)

    def as_torch(layout, memory):
        return {
            rank: {
                buffer.name: torch.frombuffer(memory[rank][buffer.name], dtype=getattr(torch, buffer.dtype)).reshape(
                    buffer.shape
                )
                if memory[rank][buffer.name]
                else torch.empty(buffer.shape, dtype=getattr(torch, buffer.dtype))
                for buffer in shard.buffers
            }
            for rank, shard in layout.shards.items()
        }

    sources = {rank: full_memory(source, rank) for rank in source.shards}
    targets = {rank: empty_memory(shard, 0x11) for rank, shard in target.shards.items()}
    torch_sources, torch_targets = as_torch(source, sources), as_torch(target, targets)
    for pair in plan.pairs:
        parcel = message(plan, *pair)
        how = rng.randrange(4)
        if how == 0:
            copy(parcel, torch_sources[pair[0]], torch_targets[pair[1]])
        elif how == 1:
            copy(parcel, sources[pair[0]], torch_targets[pair[1]])
        else:
            packed = torch.empty(parcel.nbytes, dtype=torch.uint8) if how == 2 else bytearray(parcel.nbytes)
            pack(parcel, torch_sources[pair[0]], packed)
            unpack(parcel, packed, torch_targets[pair[1]])
    assert targets == {rank: full_memory(target, rank, 0x11) for rank in target.shards}, f"seed {seed}"


def test_positions_counts_what_a_stacked_and_padded_buffer_holds():
    from tailrace.paramserver.layout import LocalBuffer, Piece

    buffer = LocalBuffer("b", "bfloat16", (2, 3, 4), (Piece("t", ((5, 7), (1, 2)), (1, 0, 3)),))
    assert list(positions(buffer, buffer.pieces[0])) == [((5, 1), 2 * (12 + 3)), ((6, 1), 2 * (12 + 4 + 3))]


def test_memory_that_does_not_fit_the_layout_is_refused_before_a_byte_moves():
    rng = random.Random(4)
    tensors = random_tensors(rng)
    source, target = random_layout(rng, tensors, "worker", 1), random_layout(rng, tensors, "replica", 1)
    parcel = message(reshard_plan(source, target), "worker0", "replica0")
    sources = full_memory(source, "worker0")
    name = max(parcel.target_bytes)
    for bad in (None, bytearray(parcel.target_bytes[name] + 1), bytes(parcel.target_bytes[name]), 7):
        targets = empty_memory(target.shards["replica0"])
        before = {key: bytes(value) for key, value in targets.items() if key != name}
        targets = {key: value for key, value in targets.items() if key != name}
        if bad is not None:
            targets[name] = bad
        packed = bytearray(parcel.nbytes)
        pack(parcel, sources, packed)
        with pytest.raises(LayoutMismatch, match=re.escape(name)):
            unpack(parcel, packed, targets)
        assert {key: value for key, value in targets.items() if key != name} == before
    with pytest.raises(LayoutMismatch, match="message"):
        pack(parcel, sources, bytearray(parcel.nbytes - 1))
    with pytest.raises(LayoutMismatch, match="nothing from"):
        message(reshard_plan(source, target), "replica0", "worker0")
