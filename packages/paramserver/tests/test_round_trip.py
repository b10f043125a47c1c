import itertools
import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.paramserver import ManifestInvalid, Publisher, RawTensor, RelayReader, VersionNotYet
from tailrace.paramserver.manifest import DTYPES

counter = itertools.count()
layouts = st.lists(
    st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 7), max_size=3)), min_size=1, max_size=8
)


@pytest.fixture
def ends(serve, token):
    relay = serve()
    with (
        Publisher(relay.address, token=token, chunk_bytes=97) as publisher,
        RelayReader(relay.address, token=token) as near,
        RelayReader(relay.address, token=token, same_host=False) as far,
    ):
        yield publisher, near, far


def tensor(dtype, shape, seed):
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(seed)
    nbytes = DTYPES[dtype] * torch.Size(shape).numel()
    high = 2 if dtype == "bool" else 256
    return torch.randint(0, high, (nbytes,), generator=generator, dtype=torch.uint8).view(kind).reshape(shape)


def bits(t):
    return bytes(t.contiguous().reshape(-1).view(torch.uint8).numpy()) if t.numel() else b""


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=layouts, seed=st.integers(0, 2**32 - 1))
def test_any_layout_arrives_bit_for_bit(ends, layout, seed):
    publisher, near, far = ends
    assert near.same_host
    assert not far.same_host
    version = next(counter)
    published = [(f"layers.{i}.w", tensor(dtype, shape, seed + i)) for i, (dtype, shape) in enumerate(layout)]
    publisher.publish(version, published)
    publisher.wait(version, 20)
    for reader in (near, far):
        with reader.lease(version) as weights:
            assert list(weights) == [name for name, _ in published]
            for name, value in published:
                assert weights[name].dtype == value.dtype
                assert weights[name].shape == value.shape
                assert bits(weights[name]) == bits(value)
                assert bytes(weights.raw()[name].data) == bits(value)


def test_buffers_arrive_without_torch(ends):
    publisher, near, far = ends
    numbers = memoryview(random.Random(3).randbytes(24)).cast("f", (2, 3))
    publisher.publish(0, [("raw", RawTensor("bfloat16", (2, 2), b"12345678")), ("floats", numbers), ("bytes", b"abc")])
    for reader in (near, far):
        with reader.lease(0) as weights:
            raw = weights.raw()
            assert [(r.dtype, r.shape) for r in raw.values()] == [
                ("bfloat16", (2, 2)),
                ("float32", (2, 3)),
                ("uint8", (3,)),
            ]
            assert [bytes(r.data) for r in raw.values()] == [b"12345678", numbers.tobytes(), b"abc"]
            assert all(r.data.readonly for r in raw.values())


def test_strided_tensors_arrive_as_what_they_show(ends):
    publisher, near, _ = ends
    base = torch.arange(60, dtype=torch.float32).reshape(6, 10)
    views = {
        "transposed": base.t(),
        "stepped": base[::2, 1::3],
        "expanded": base[0].expand(3, 10),
        "scalar": base[1, 1],
    }
    publisher.publish(0, views.items())
    with near.lease(0) as weights:
        assert all(torch.equal(weights[name], view) for name, view in views.items())


def test_tied_parameters_appear_once(ends):
    publisher, near, _ = ends
    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(8, 4), "head": torch.nn.Linear(4, 8, bias=False)})
    model["head"].weight = model["embed"].weight
    publisher.publish(0, model.state_dict().items())
    with near.lease(0) as weights:
        assert list(weights) == ["embed.weight"]
        assert dict(weights.tied) == {"head.weight": "embed.weight"}
        assert torch.equal(weights["embed.weight"], model["embed"].weight)


def test_a_generator_whose_tensors_reuse_an_address_ties_nothing(ends):
    publisher, near, _ = ends
    addresses = []

    def gathered():
        for i in range(20):
            full = torch.full((1000,), float(i))
            addresses.append(full.data_ptr())
            yield f"w{i}", full
            del full

    publisher.publish(0, gathered())
    assert len(set(addresses)) < len(addresses), "the allocator reused nothing: the test shows nothing"
    with near.lease(0) as weights:
        assert [float(weights[f"w{i}"][0]) for i in range(20)] == [float(i) for i in range(20)]


def test_growing_and_shrinking_versions(ends):
    publisher, near, far = ends
    for version, size in enumerate([10, 30_000, 5, 300_000, 40, 40]):
        value = torch.full((size,), float(version))
        publisher.publish(version, [("w", value)])
        publisher.wait(version, 20)
        for reader in (near, far):
            with reader.lease(version) as weights:
                assert torch.equal(weights["w"], value)


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [("w", torch.zeros(2)), ("w", torch.ones(2))],
        [("w", torch.zeros(2, dtype=torch.complex64))],
        [("w", torch.zeros(2, device="meta"))],
        [("w", memoryview(b"abcdef")[::2])],
        [("w", RawTensor("float32", (2,), b"1234567"))],
        [("w", RawTensor("float128", (2,), b"1234567"))],
        [("w", "text")],
        [("", b"x")],
    ],
)
def test_unpublishable_weights_are_refused_in_publish(ends, bad):
    publisher, near, _ = ends
    with pytest.raises(ManifestInvalid):
        publisher.publish(0, bad)
    with pytest.raises(VersionNotYet), near.lease(0, timeout_s=0):
        pass
    publisher.publish(0, [("w", b"good")])  # and the publisher goes on
    publisher.wait(0, 20)


def test_a_failed_publish_that_is_remembered_does_not_stop_growth(ends):
    publisher, near, _ = ends

    class Broken(torch.Tensor):
        def detach(self):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as failure:
        publisher.publish(0, [("w", torch.zeros(10).as_subclass(Broken))])
    grown = torch.ones(1_000_000, dtype=torch.uint8)
    for version in (1, 2):
        publisher.publish(version, [("w", grown)])
        publisher.wait(version, 20)
    assert failure.traceback
    with near.lease(2) as weights:
        assert torch.equal(weights["w"], grown)
