"""What a layout accepts, and what its errors say."""

import ast
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver.layout import (
    GlobalTensor,
    Layout,
    LayoutInvalid,
    LayoutMismatch,
    LocalBuffer,
    Piece,
    Shard,
    reshard_plan,
)

from .random_layouts import elements

W = GlobalTensor("w", "float32", (4, 6))


def test_the_digest_is_of_the_content():
    boxes = {"a": {"w": [((0, 4), (0, 3))]}, "b": {"w": [((0, 4), (3, 6))]}}
    layout = Layout.of_boxes([W], boxes)
    assert Layout.of_boxes([W], dict(reversed(boxes.items()))).digest == layout.digest
    assert Layout.of_boxes([W], {"a": boxes["b"], "b": boxes["a"]}).digest != layout.digest
    assert Layout.of_boxes([W._replace(dtype="bfloat16")], boxes).digest != layout.digest


def test_ranks_that_hold_the_same_share_a_shard():
    layout = Layout.of_boxes([W], {name: {"w": [((0, 4), (0, 6))]} for name in "cab"})
    assert [ranks for _, ranks in layout.groups] == [("a", "b", "c")]
    assert len(layout.to_wire()["shards"]) == 1


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 5), st.integers(1, 6)), max_size=4))
def test_finds_every_gap_and_every_overlap(spans):
    boxes = [((a, min(a + h, 4)), (b, min(b + w, 6))) for a, h, b, w in spans]
    count = dict.fromkeys(elements(((0, 4), (0, 6))), 0)
    for box in boxes:
        for index in elements(box):
            count[index] += 1
    one_rank = {"a": {"w": boxes}}
    if any(n > 1 for n in count.values()):
        with pytest.raises(LayoutInvalid, match=r"'w' on rank 'a'.*overlap"):
            Layout.of_boxes([W], one_rank)
    elif any(n == 0 for n in count.values()):
        with pytest.raises(LayoutInvalid, match=r"'w' \(4, 6\): no rank holds"):
            Layout.of_boxes([W], one_rank)
    else:
        Layout.of_boxes([W], one_rank)
    spread = {f"r{number}": {"w": [box]} for number, box in enumerate(boxes)} | {"z": {}}
    if all(count.values()):
        Layout.of_boxes([W], spread)
    else:
        with pytest.raises(LayoutInvalid, match="no rank holds") as error:
            Layout.of_boxes([W], spread)
        named = ast.literal_eval(str(error.value).split("holds ")[1].split(", expected")[0])
        assert all(count[index] == 0 for index in elements(named))


def one(piece, **changes):
    whole = LocalBuffer("w", "float32", (4, 6), (Piece("w", ((0, 4), (0, 6)), (0, 0)),))
    buffer = replace(LocalBuffer("b", "float32", (4, 6), (piece,)), **changes)
    return Layout((W,), {"full": Shard((whole,)), "bad": Shard((buffer,))})


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: one(Piece("v", ((0, 1), (0, 1)), (0, 0))), "'v' on rank 'bad': not a tensor"),
        (lambda: one(Piece("w", ((0, 5), (0, 1)), (0, 0))), "'w' on rank 'bad': found the box"),
        (lambda: one(Piece("w", ((-1, 2), (0, 1)), (0, 0))), "'w' on rank 'bad': found the box"),
        (lambda: one(Piece("w", ((2, 2), (0, 1)), (0, 0))), "'w' on rank 'bad': found the box"),
        (lambda: one(Piece("w", ((0, 1),), (0, 0))), "'w' on rank 'bad': found the box"),
        (lambda: one(Piece("w", ((0, 2), (0, 1)), (3, 0))), "sticks out of the buffer 'b'"),
        (lambda: one(Piece("w", ((0, 2), (0, 1)), (-1, 0))), "sticks out of the buffer 'b'"),
        (lambda: one(Piece("w", ((0, 2), (0, 1)), (0,))), "'w' on rank 'bad': found the position"),
        (
            lambda: one(Piece("w", ((0, 2), (0, 1)), (0, 0)), dtype="bfloat16"),
            "found the dtype bfloat16, expected float32",
        ),
        (
            lambda: one(Piece("w", ((0, 2), (0, 1)), (0, 0)), dtype="object"),
            "'b' of rank 'bad': found the dtype 'object'",
        ),
        (lambda: one(Piece("w", ((0, 2), (0, 1)), (0, 0)), shape=(4, -6)), "'b' of rank 'bad': found the shape"),
        (lambda: one(Piece("w", ((0, 2), (0, 1)), (0, 0)), shape=(2**40, 2**40)), "expected at most"),
        (lambda: one(Piece("w", ((0, 2), (0, 1)), (0, 0)), name="b\n"), "rank 'bad': found 'b"),
        (lambda: Layout((W, W), {"a": Shard(())}), "'w' twice"),
        (lambda: Layout((W,), {}), "0 ranks"),
        (lambda: Layout((), {"a": Shard(())}), "0 tensors"),
        (lambda: Layout.of_boxes([W], {"": {"w": [((0, 4), (0, 6))]}}), "a rank's name"),
        (
            lambda: Layout.of_boxes([GlobalTensor("s", "int8", ())], {"a": {"s": [(), ()]}}),
            "'s' on rank 'a': the boxes .* overlap",
        ),
    ],
)
def test_what_is_wrong_is_named(make, says):
    with pytest.raises(LayoutInvalid, match=says):
        make()


def test_two_pieces_in_one_place_are_refused():
    pieces = (Piece("w", ((0, 2), (0, 6)), (0, 0)), Piece("w", ((2, 4), (0, 6)), (1, 0)))
    with pytest.raises(LayoutInvalid, match=r"rank 'a', buffer 'b'.*share memory"):
        Layout((W,), {"a": Shard((LocalBuffer("b", "float32", (4, 6), pieces),))})


def test_a_tensor_without_dimensions_and_one_without_elements():
    tensors = [GlobalTensor("scale", "float32", ()), GlobalTensor("none", "float32", (0, 3))]
    Layout.of_boxes(tensors, {"a": {"scale": [()]}})
    with pytest.raises(LayoutInvalid, match=r"'scale'.*no rank holds"):
        Layout.of_boxes(tensors, {"a": {}})


def test_two_models_do_not_mix():
    boxes = {"a": {"w": [((0, 4), (0, 6))]}}
    source = Layout.of_boxes([W], boxes)
    with pytest.raises(LayoutMismatch, match="'w': found bfloat16"):
        reshard_plan(source, Layout.of_boxes([W._replace(dtype="bfloat16")], boxes))
    more = Layout.of_boxes([W, GlobalTensor("x", "int8", ())], {"a": {"w": [((0, 4), (0, 6))], "x": [()]}})
    with pytest.raises(LayoutMismatch, match="'x': found in the target layout only"):
        reshard_plan(source, more)
    with pytest.raises(LayoutMismatch, match="'x': found in the source layout only"):
        reshard_plan(more, source)
