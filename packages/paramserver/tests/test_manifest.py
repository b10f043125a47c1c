import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver import Manifest, ManifestInvalid
from tailrace.paramserver.manifest import DTYPES, TensorSpec, aligned, byte_size

shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)


@st.composite
def manifests(draw):
    specs, end = [], 0
    for index, (dtype, shape) in enumerate(
        draw(st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), shapes), min_size=1))
    ):
        offset, nbytes = aligned(end), byte_size(dtype, shape)
        specs.append(TensorSpec(f"t{index}", dtype, shape, offset, nbytes))
        end = offset + nbytes
    return Manifest(draw(st.integers(0, 99)), draw(st.integers(0, 2**60)), draw(st.integers(1, 500)), end, tuple(specs))


@settings(deadline=None)
@given(manifests())
def test_survives_the_wire(manifest):
    assert Manifest.from_wire(json.loads(json.dumps(manifest.to_wire()))) == manifest
    covered = [manifest.chunk(index) for index in range(manifest.chunk_count)]
    assert sum(nbytes for _, nbytes in covered) == manifest.total_bytes
    assert all(offset == index * manifest.chunk_bytes and nbytes > 0 for index, (offset, nbytes) in enumerate(covered))


def wire(**changes):
    good = {"version": 3, "stamp": 7, "chunk_bytes": 64, "total_bytes": 72, "tied": {"b": "a"}}
    good["tensors"] = [["a", "float32", [4], 0, 16], ["c", "int8", [8], 64, 8]]
    return {**good, **changes}


BAD = {
    "overlap": wire(tensors=[["a", "float32", [17], 0, 68], ["c", "int8", [8], 64, 8]]),
    "order": wire(tensors=[["c", "int8", [8], 64, 8], ["a", "float32", [4], 0, 16]]),
    "past the end": wire(total_bytes=71),
    "short of the end": wire(total_bytes=73),
    "misaligned": wire(tensors=[["a", "float32", [4], 4, 16]], total_bytes=20),
    "negative offset": wire(tensors=[["a", "float32", [4], -64, 16]]),
    "size and shape": wire(tensors=[["a", "float32", [4], 0, 17]]),
    "huge shape": wire(tensors=[["a", "int8", [2**40, 2**40], 0, 2**80]], total_bytes=2**80),
    "twice": wire(tensors=[["a", "int8", [64], 0, 64], ["a", "int8", [8], 64, 8]]),
    "empty name": wire(tensors=[["", "int8", [72], 0, 72]]),
    "control character": wire(tensors=[["a\n", "int8", [72], 0, 72]]),
    "dtype": wire(tensors=[["a", "object", [9], 0, 72]]),
    "dtype of another type": wire(tensors=[["a", ["int8"], [72], 0, 72]]),
    "no tensors": wire(tensors=[], total_bytes=0),
    "bool for a number": wire(version=True),
    "float for a number": wire(stamp=7.0),
    "no chunk size": wire(chunk_bytes=0),
    "too many chunks": wire(chunk_bytes=1, tensors=[["a", "int8", [2**21], 0, 2**21]], total_bytes=2**21),
    "tied to nothing": wire(tied={"b": "z"}),
    "tied to a list": wire(tied={"b": []}),
    "alias of itself": wire(tied={"a": "c"}),
    "extra field": {**wire(), "code": "import os"},
    "missing field": {key: value for key, value in wire().items() if key != "tied"},
    "not an object": [1],
    "tensor of three": wire(tensors=[["a", "int8", [72]]]),
    "shape of text": wire(tensors=[["a", "int8", "72", 0, 72]]),
}


@pytest.mark.parametrize("case", BAD)
def test_refuses(case):
    Manifest.from_wire(wire())
    with pytest.raises(ManifestInvalid):
        Manifest.from_wire(BAD[case])


def test_refuses_what_is_too_large():
    with pytest.raises(ManifestInvalid, match="at most 71"):
        Manifest.from_wire(wire(), max_bytes=71)


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.sampled_from(sorted(wire())), x),
    )
)
def test_anything_else_is_refused_cleanly(data):
    with pytest.raises(ManifestInvalid):
        Manifest.from_wire(data)


@settings(deadline=None)
@given(st.sampled_from(sorted(wire())), st.none() | st.integers() | st.text() | st.lists(st.lists(st.integers())))
def test_a_manifest_that_is_accepted_is_sound(field, value):
    try:
        manifest = Manifest.from_wire(wire(**{field: value}))
    except ManifestInvalid:
        return
    spans = [(t.offset, t.offset + t.nbytes) for t in manifest.tensors]
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
    assert spans[-1][1] == manifest.total_bytes
