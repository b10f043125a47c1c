import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver import ManifestInvalid, Publisher, RawTensor, RelayReader, WeightLease
from tailrace.paramserver.clients.staging import StagingBuffer
from tailrace.paramserver.codec import cast as cast_module
from tailrace.paramserver.codec.cast import Cast, matrices, restore
from tailrace.paramserver.errors import CastImpossible


def e4m3_value(code):
    """The number of a float8_e4m3fn code, from the format's definition."""
    sign, exponent, mantissa = -1.0 if code & 0x80 else 1.0, code >> 3 & 0xF, code & 7
    if (exponent, mantissa) == (15, 7):
        return math.nan
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7))


E4M3 = np.array([e4m3_value(code) for code in range(128)])  # up to 448, and a NaN; in rising order


def e4m3_nearest(value):
    """The nearest e4m3 number, ties to the even code: slow and obvious."""
    if not math.isfinite(value):
        return math.nan
    distance = np.abs(E4M3[:127] - abs(value))
    nearest = np.flatnonzero(distance == distance.min())
    code = next(code for code in nearest if len(nearest) == 1 or code % 2 == 0)
    return math.copysign(E4M3[code], value)


def row_scale(row):
    """The smallest power of two from 2**-126 at which no finite value exceeds 448 times it, by counting up."""
    exponent, largest = -126, max((abs(float(v)) for v in row if math.isfinite(v)), default=0.0)
    while largest > 448 * 2.0**exponent:
        exponent += 1
    return 2.0**exponent


@pytest.fixture
def publish():
    """What a reader sees of a published stream."""
    buffers = []

    def published(weights):
        buffers.append(StagingBuffer())
        manifest = buffers[-1].fill(weights, 0, 2**20)
        return WeightLease(manifest, buffers[-1].view[: manifest.total_bytes].toreadonly(), [])

    yield published
    for buffer in buffers:
        buffer.close()


def round_trip(weights, cast, dtype="float32"):
    buffer = StagingBuffer()
    manifest = buffer.fill(cast.apply(weights), 0, 2**20)
    seen = WeightLease(manifest, buffer.view[: manifest.total_bytes], [])
    restored = {name: tensor.clone() for name, tensor in restore(seen, dtype)}
    buffer.close()
    return restored


def matrix(seed, rows, columns, spread, dtype="float32"):
    """Rows of sizes that differ by up to 2**spread, with some special values in them."""
    generator = np.random.default_rng(seed)
    exponents = generator.uniform(-spread, spread, (rows, 1)) + generator.normal(0, 2, (rows, columns))
    values = generator.choice([-1, 1], (rows, columns)) * 2.0 ** np.clip(exponents, -140, 120)
    values[generator.random((rows, columns)) < 0.05] = 0.0
    return torch.from_numpy(values).to(getattr(torch, dtype))


def same(a, b):
    return torch.equal(torch.nan_to_num(a, nan=12345.0), torch.nan_to_num(b, nan=12345.0))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    rows=st.integers(1, 6),
    columns=st.integers(8, 40),
    spread=st.sampled_from([2, 20, 110]),
    dtype=st.sampled_from(["float32", "float64"]),
)
def test_float8_is_the_nearest_number_on_the_rows_scale(seed, rows, columns, spread, dtype):
    value = matrix(seed, rows, columns, spread, dtype)
    got = round_trip([("w", value)], Cast("float8_e4m3fn"))["w"]
    value = value.float()
    for row, restored in zip(value.tolist(), got.tolist(), strict=True):
        scale = row_scale(row)
        assert restored == [e4m3_nearest(v / scale) * scale for v in row]
        assert all(abs(r - v) <= max(2**-4 * abs(v), 2**-10 * scale) for v, r in zip(row, restored, strict=True))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), spread=st.sampled_from([2, 20, 110]))
def test_float8_is_torchs_own_conversion_of_the_scaled_row(publish_once, seed, spread):
    value = matrix(seed, 5, 33, spread)
    seen = publish_once(Cast("float8_e4m3fn").apply([("w", value)]))
    assert list(seen) == ["w", "w.scale"]
    assert seen["w.scale"].shape == (5, 1)
    assert seen["w.scale"].flatten().tolist() == [row_scale(row) for row in value.tolist()]
    own = (value.double() / seen["w.scale"].double()).float().to(torch.float8_e4m3fn)
    assert torch.equal(seen["w"].view(torch.uint8), own.view(torch.uint8))


@pytest.fixture(scope="module")
def publish_once():
    buffer = StagingBuffer()

    def published(weights):
        manifest = buffer.fill(weights, 0, 2**20)
        return WeightLease(manifest, buffer.view[: manifest.total_bytes].toreadonly(), [])

    yield published
    buffer.close()


@pytest.mark.parametrize("exponent", [-126, -100, -9, 0, 1, 50, 119])
def test_float8_numbers_stay_the_same_at_any_scale(exponent):
    numbers = torch.tensor([e4m3_value(code) for code in range(256) if code & 0x7F != 0x7F], dtype=torch.float64)
    value = (numbers * 2.0**exponent).float()
    got = round_trip([("w", value[None])], Cast("float8_e4m3fn"))["w"][0]
    assert torch.equal(got, value)
    assert torch.equal(torch.signbit(got), torch.signbit(value))  # -0.0 too


def test_float8_of_what_was_restored_changes_no_value():
    cast = Cast("float8_e4m3fn")
    once = round_trip([("w", matrix(3, 50, 60, 30))], cast)
    assert torch.equal(round_trip(once.items(), cast)["w"], once["w"])


def test_float8_of_the_edges():
    inf, nan = math.inf, math.nan
    filler = [0.0] * 8
    rows = [
        [nan, inf, -inf, 448.0, 1.0],  # one bad value must not spoil its row
        [nan, nan, nan, nan, nan],
        [0.0, -0.0, 0.0, 0.0, 0.0],
        [2.0**-149, -(2.0**-130), 2.0**-140, 0.0, 0.0],
        [448.0 * 2**-9, math.nextafter(448.0 * 2**-9, 1), 0.0, 0.0, 0.0],
        [2.0**127, 448.0 * 2.0**119, 0.0, 0.0, 0.0],
    ]
    value = torch.tensor([row + filler for row in rows])
    got = round_trip([("w", value)], Cast("float8_e4m3fn"))["w"][:, :5].tolist()
    assert got[0][3:] == [448.0, 1.0]
    assert all(math.isnan(v) for v in got[0][:3] + got[1])
    assert got[2] == [0.0] * 5
    assert got[3] == [0.0, -(2.0**-130), 0.0, 0.0, 0.0]  # the smallest scale: a step of 2**-135
    assert got[4][:2] == [448.0 * 2**-9] * 2
    assert got[5][:2] == rows[5][:2]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), dtype=st.sampled_from(["float32", "float64"]))
def test_bfloat16_is_within_its_bound(seed, dtype):
    value = matrix(seed, 4, 50, 110, dtype)
    got = round_trip([("w", value)], Cast("bfloat16"))["w"].double()
    value = value.double()
    slack = 1.0 if dtype == "float32" else 1 + 2**-15
    bound = torch.where(value.abs() >= 2.0**-126, 2**-8 * value.abs(), torch.full_like(value, 2.0**-134)) * slack
    assert bool(((got - value).abs() <= bound).all())


def test_bfloat16_rounds_to_nearest_even_and_keeps_what_it_holds():
    bits = torch.arange(2**16, dtype=torch.int32)
    held = (bits << 16).view(torch.float32)[None]
    got = round_trip([("w", held)], Cast("bfloat16"))["w"]
    assert same(got, held)
    assert torch.equal(torch.signbit(got[got == 0]), torch.signbit(held[held == 0]))
    halfway = ((bits << 16) + 0x8000).view(torch.float32)[
        None
    ]  # between two neighbours: to the one with an even last bit
    even = (((bits + 1) & ~1) << 16).view(torch.float32)[None]
    assert same(round_trip([("w", halfway)], Cast("bfloat16"))["w"], torch.where(halfway.isnan(), math.nan, even))


@pytest.mark.parametrize("target", ["bfloat16", "float8_e4m3fn"])
@pytest.mark.parametrize("slab", [1, 7, 2**22])
def test_slabs_make_no_difference(monkeypatch, target, slab):
    monkeypatch.setattr(cast_module, "_SLAB_ELEMENTS", slab)
    value = matrix(11, 9 * 3, 16, 20).reshape(9, 3, 16)
    got = round_trip([("experts", value), ("turned", value.transpose(0, 1))], Cast(target))
    rows = round_trip([("w", value.reshape(27, 16))], Cast(target))["w"]
    assert torch.equal(got["experts"], rows.reshape(9, 3, 16))
    assert torch.equal(got["turned"], rows.reshape(9, 3, 16).transpose(0, 1))


def test_what_is_cast_and_what_stays(publish):
    layers = {
        "embed.weight": torch.randn(10, 16),
        "norm.weight": torch.randn(16),
        "proj.bias": torch.randn(16),
        "steps": torch.arange(12).reshape(3, 4),
        "narrow": torch.randn(5, 1),  # its scales would outweigh what it saves
        "half": torch.randn(4, 16, dtype=torch.float16),
        "empty": torch.randn(0, 16),
        "scalar": torch.tensor(2.0),
    }
    seen = publish(Cast("float8_e4m3fn").apply(layers.items()))
    assert {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in seen.items()} == {
        "embed.weight": "float8_e4m3fn",
        "embed.weight.scale": "float32",
        "norm.weight": "float32",
        "proj.bias": "float32",
        "steps": "int64",
        "narrow": "float32",
        "half": "float8_e4m3fn",
        "half.scale": "float32",
        "empty": "float32",
        "scalar": "float32",
    }
    restored = dict(restore(seen, "bfloat16"))
    assert list(restored) == list(layers)
    assert restored["embed.weight"].dtype == torch.bfloat16
    for name in ("norm.weight", "proj.bias", "steps", "narrow", "empty", "scalar"):
        assert torch.equal(restored[name], layers[name])
    rounded = publish(Cast("bfloat16").apply(layers.items()))
    assert {name for name, tensor in rounded.items() if tensor.dtype == torch.bfloat16} == {"embed.weight", "narrow"}
    assert rounded["half"].dtype == torch.float16  # bfloat16 would lose bits and save nothing


def test_a_rule_of_ones_own(publish):
    layers = {
        "a.weight": torch.randn(4, 16),
        "b.weight": torch.randn(4, 16),
        "b.bias": torch.randn(64),
        "n": torch.ones(3),
    }
    told = []

    def only_b(name, dtype, shape):
        told.append((name, dtype, shape))
        return name.startswith("b.")

    seen = publish(Cast("float8_e4m3fn", only_b).apply(layers.items()))
    assert told == [(name, "float32", tuple(t.shape)) for name, t in layers.items()]
    assert list(seen) == ["a.weight", "b.weight", "b.weight.scale", "b.bias", "b.bias.scale", "n"]
    assert seen["b.bias.scale"].shape == (1,)
    everything = publish(Cast("bfloat16", lambda *_: True).apply([("s", torch.tensor(1.0)), ("v", torch.ones(3))]))
    assert [str(t.dtype) for t in everything.values()] == ["torch.float32", "torch.bfloat16"]


@pytest.mark.parametrize("target", ["bfloat16", "float8_e4m3fn"])
def test_tied_tensors_stay_tied_and_are_cast_once(publish, monkeypatch, target):
    calls = []
    original = cast_module._target
    monkeypatch.setattr(cast_module, "_target", lambda view, *rest: calls.append(len(view)) or original(view, *rest))
    weight = torch.nn.Parameter(torch.randn(10, 16))
    seen = publish(Cast(target).apply([("embed", weight), ("head", weight), ("other", weight.detach().clone())]))
    scaled = target == "float8_e4m3fn"
    assert dict(seen.tied) == ({"head": "embed", "head.scale": "embed.scale"} if scaled else {"head": "embed"})
    assert len(calls) == (4 if scaled else 2)
    restored = dict(restore(seen, "float32"))
    assert torch.equal(restored["embed"], restored["other"])


@pytest.mark.parametrize("target", ["bfloat16", "float8_e4m3fn"])
def test_a_generator_whose_tensors_are_freed(publish, target):
    def gathered():
        for i in range(10):
            yield f"w{i}", torch.full((8, 16), float(i))

    restored = dict(restore(publish(Cast(target).apply(gathered())), "float32"))
    assert all(torch.equal(restored[f"w{i}"], torch.full((8, 16), float(i))) for i in range(10))


@pytest.mark.parametrize("target", ["bfloat16", "float8_e4m3fn"])
def test_whatever_publish_takes(publish, target):
    array = matrix(5, 4, 16, 3).numpy()
    raw = RawTensor("float32", (4, 16), array.tobytes())
    forms = {
        "torch": torch.from_numpy(array),
        "numpy": array,
        "raw": raw,
        "reversed": array[::-1],
        "big": array.astype(">f4"),
        "buffer": memoryview(array.tobytes()).cast("B").cast("f", (4, 16)),
    }
    got = dict(restore(publish(Cast(target).apply(forms.items())), "float32"))
    for name in forms:
        assert torch.equal(got[name].flip(0) if name == "reversed" else got[name], got["torch"]), name


def test_from_a_trainer_to_a_replica(serve, token):
    relay, layer, replica = serve(), torch.nn.Linear(64, 32), torch.nn.Linear(64, 32)
    with Publisher(relay.address, token=token) as publisher, RelayReader(relay.address, token=token) as reader:
        publisher.publish(7, Cast("float8_e4m3fn").apply(layer.named_parameters()))
        with reader.lease(7) as weights:
            assert weights.manifest.total_bytes < 0.4 * sum(4 * p.numel() for p in layer.parameters())
            replica.load_state_dict(dict(restore(weights, "float32")))
    assert torch.equal(replica.bias, layer.bias)
    error = ((replica.weight - layer.weight).abs() / layer.weight.abs()).detach()
    assert float(error[layer.weight.abs() > 2**-7].max()) <= 2**-4


def test_gradients_are_not_asked_for(publish):
    layer = torch.nn.Linear(16, 4)
    seen = publish(Cast("float8_e4m3fn").apply(layer.named_parameters()))
    layer.load_state_dict(dict(restore(seen, "float32")))


def test_bad_casts_are_refused(publish):
    with pytest.raises(CastImpossible, match="cast to 'int8', expected one of bfloat16, float8_e4m3fn"):
        Cast("int8")
    with pytest.raises(CastImpossible, match="'steps': found the dtype int64 to cast to bfloat16") as caught:
        publish(Cast("bfloat16", lambda *_: True).apply([("steps", torch.arange(12))]))
    assert isinstance(caught.value, ManifestInvalid)
    with pytest.raises(ManifestInvalid, match=r"'w\.scale' twice"):
        publish(Cast("float8_e4m3fn").apply([("w", torch.randn(4, 16)), ("w.scale", torch.ones(4, 1))]))
    with pytest.raises(CastImpossible, match="found 'int8' to restore to"):
        list(restore({}, "int8"))


@pytest.mark.parametrize(
    "scale", [torch.ones(4), torch.ones(4, 16), torch.ones(4, 1, dtype=torch.float64), torch.ones(3, 1)]
)
def test_scales_that_do_not_fit_are_refused(scale):
    weights = {"w": torch.zeros(4, 16).to(torch.float8_e4m3fn), "w.scale": scale}
    with pytest.raises(CastImpossible, match=r"'w\.scale': found .*, expected float32 \(4, 1\)"):
        list(restore(weights, "float32"))


def test_what_was_no_cast_comes_as_it_is():
    weights = {
        "plain8": torch.zeros(4, 16).to(torch.float8_e4m3fn),  # quantised by somebody else: no scales of ours
        "norm.scale": torch.ones(3),
        "norm": torch.ones(3),
    }
    assert {name: value is weights[name] for name, value in restore(weights, "float32")} == dict.fromkeys(weights, True)


def test_restore_widens_what_fits_and_nothing_else():
    weights = {"b": torch.ones(2, dtype=torch.bfloat16), "h": torch.ones(2, dtype=torch.float16), "f": torch.ones(2)}
    for dtype, expected in {
        "float64": ["float64", "float64", "float32"],
        "float32": ["float32", "float32", "float32"],
        "bfloat16": ["bfloat16", "float16", "float32"],
    }.items():
        assert [str(value.dtype) for _, value in restore(weights, dtype)] == [f"torch.{name}" for name in expected]


def test_the_rule_unless_another_is_given():
    assert matrices("w", "float32", (2, 3))
    assert matrices("w", "float16", (2, 3, 4))
    assert not matrices("w", "float32", (6,))
    assert not matrices("w", "int8", (2, 3))


def test_without_torch_a_cast_says_so_and_what_stays_passes():
    code = """
import sys
sys.modules["torch"] = None
from tailrace.paramserver import RawTensor
from tailrace.paramserver.codec.cast import Cast
assert [name for name, _ in Cast("bfloat16").apply([("norm", RawTensor("float32", (2,), bytes(8)))])] == ["norm"]
try:
    list(Cast("bfloat16").apply([("w", RawTensor("float32", (2, 2), bytes(16)))]))
except ValueError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert found == "'w': a cast needs torch; pip install 'tailrace-paramserver[torch]'\n"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("target", ["bfloat16", "float8_e4m3fn"])
def test_a_cast_on_a_device_is_the_same(target):
    value = matrix(7, 30, 50, 100)
    there = round_trip([("w", value.cuda())], Cast(target))["w"]
    assert torch.equal(there, round_trip([("w", value)], Cast(target))["w"])
