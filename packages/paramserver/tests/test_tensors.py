import ctypes
import gc
import mmap
import sys
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver import ManifestInvalid, ParamServerError, RawTensor, WeightLease
from tailrace.paramserver.clients.staging import StagingBuffer
from tailrace.paramserver.codec.cast import Cast
from tailrace.paramserver.dlpack import ExportImpossible, torch_view
from tailrace.paramserver.manifest import DTYPES
from tailrace.paramserver.tensors import source

NOT_NUMPY = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


class Producer:
    """Another library's array: speaks DLPack and nothing else."""

    def __init__(self, array, device=None):
        self.array, self.device, self.asked = array, device, []

    def __dlpack__(self, **options):
        self.asked.append(options)
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device or self.array.__dlpack_device__()


def some_bytes(nbytes, dtype="uint8"):
    high = 2 if dtype == "bool" else 256
    return np.random.default_rng(nbytes).integers(0, high, nbytes, dtype=np.uint8).tobytes()


def copied(item):
    memory = bytearray(item.nbytes)
    item.copy_to(memoryview(memory))
    return bytes(memory)


def bits(tensor):
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()) if tensor.numel() else b""


def raw(dtype, shape, *, read_only=True):
    data = some_bytes(DTYPES[dtype] * int(np.prod(shape)), dtype)
    return RawTensor(dtype, shape, memoryview(data if read_only else bytearray(data)))


def flags(capsule):
    """The flags of a versioned capsule, read apart from the code that sets them."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return ctypes.c_uint64.from_address(get(capsule, b"dltensor_versioned") + 24).value


@pytest.fixture
def stage():
    """What a reader would see of weights that a publisher has staged."""
    buffers = []

    def staged(weights):
        buffers.append(StagingBuffer())
        manifest = buffers[-1].fill(weights, 0, 2**20)
        return WeightLease(manifest, buffers[-1].view[: manifest.total_bytes].toreadonly(), [])

    yield staged
    for buffer in buffers:
        buffer.close()


# --- out


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from(sorted(DTYPES)), shape=shapes, read_only=st.booleans())
def test_a_raw_tensor_becomes_a_torch_tensor_of_the_same_bits(dtype, shape, read_only):
    tensor = raw(dtype, shape, read_only=read_only)
    made = torch.from_dlpack(tensor)
    assert (str(made.dtype), tuple(made.shape)) == (f"torch.{dtype}", shape)
    assert bits(made) == bytes(tensor.data)


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from(sorted(DTYPES.keys() - NOT_NUMPY)), shape=shapes, read_only=st.booleans())
def test_a_raw_tensor_becomes_a_numpy_array_of_the_same_bits(dtype, shape, read_only):
    tensor = raw(dtype, shape, read_only=read_only)
    made = np.from_dlpack(tensor)
    assert (made.dtype.name, made.shape) == (dtype, shape)
    assert made.tobytes() == bytes(tensor.data)
    if made.size:
        assert made.flags.writeable != read_only


def test_no_copy_on_the_way_out():
    data = bytearray(16)
    tensor = RawTensor("float32", (4,), memoryview(data))
    seen_by_numpy, seen_by_torch = np.from_dlpack(tensor), torch.from_dlpack(tensor)
    memoryview(data).cast("f")[2] = 1.5
    assert seen_by_numpy.tolist() == seen_by_torch.tolist() == [0, 0, 1.5, 0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_only_read_only_memory_carries_the_flag(dtype):
    assert flags(raw(dtype, (4,)).__dlpack__(max_version=(1, 0))) & 1 == 1
    assert flags(raw(dtype, (4,), read_only=False).__dlpack__(max_version=(1, 0))) & 1 == 0
    assert flags(raw(dtype, (4,)).__dlpack__(max_version=(1, 0), copy=True)) & 1 == 0


@pytest.mark.parametrize("dtype", ["int16", "bfloat16"])
def test_a_consumer_that_cannot_be_told_gets_no_read_only_memory(dtype):
    for version in (None, (0, 8)):
        with pytest.raises(ExportImpossible, match="ask with copy=True") as caught:
            raw(dtype, (4,)).__dlpack__(max_version=version)
        assert isinstance(caught.value, BufferError)  # what DLPack's consumers expect
        assert raw(dtype, (4,)).__dlpack__(max_version=version, copy=True) is not None
    writable = raw(dtype, (4,), read_only=False)
    assert bits(torch.from_dlpack(writable.__dlpack__())) == bytes(writable.data)


@pytest.mark.parametrize("dtype", ["int16", "bfloat16"])
def test_a_copy_is_the_consumers_own(dtype):
    tensor = raw(dtype, (4,))
    before = bytes(tensor.data)
    made = torch.from_dlpack(tensor, copy=True)
    made.zero_()
    assert bytes(tensor.data) == before
    assert bits(made) == bytes(8)


def test_another_device_is_refused():
    assert raw("int8", (4,)).__dlpack_device__() == (1, 0)
    with pytest.raises(ExportImpossible, match=r"asked for DLPack device \(2, 0\)"):
        raw("int8", (4,)).__dlpack__(max_version=(1, 0), dl_device=(2, 0))


def test_an_exported_tensor_keeps_its_memory():
    memory = mmap.mmap(-1, 4096)
    memory[:4] = b"abcd"
    tensor = RawTensor("uint8", (4,), memoryview(memory)[:4].toreadonly())
    made = [np.from_dlpack(tensor), torch.from_dlpack(tensor)]
    del tensor
    gc.collect()
    with pytest.raises(BufferError):
        memory.close()  # something still refers to it
    assert [bytes(np.asarray(array)) for array in made] == [b"abcd"] * 2
    made.clear()
    gc.collect()
    memory.close()


@pytest.mark.parametrize("bad", [RawTensor("float32", (2,), b"1234567"), RawTensor("complex64", (1,), b"12345678")])
def test_an_unsound_raw_tensor_is_not_exported(bad):
    with pytest.raises(ManifestInvalid):
        torch.from_dlpack(bad)


@pytest.mark.parametrize(("dtype", "missing"), [("bfloat16", ["torch"]), ("float32", ["torch", "numpy"])])
def test_exporting_without_the_library_says_which(monkeypatch, dtype, missing):
    for module in missing:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ExportImpossible, match=f"exporting {dtype} needs torch"):
        raw(dtype, (4,)).__dlpack__(max_version=(1, 0))


def test_torch_makes_what_an_old_numpy_cannot(monkeypatch):
    class Old(np.ndarray):
        def __dlpack__(self, *, stream=None):
            raise AssertionError("asked without the options that it does not know")

    monkeypatch.setattr(np, "frombuffer", lambda data, dtype: np.asarray(bytearray(data)).view(dtype).view(Old))
    assert flags(raw("float32", (4,)).__dlpack__(max_version=(1, 0))) & 1 == 1


def test_the_tensors_of_a_lease_are_exported_where_they_lie(stage):
    weights = stage([("w", torch.arange(6).reshape(2, 3)), ("h", torch.ones(3, dtype=torch.bfloat16))])
    made = np.from_dlpack(weights.raw()["w"])
    assert made.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert not made.flags.writeable
    assert made.__array_interface__["data"][0] == weights["w"].data_ptr()
    assert torch.from_dlpack(weights.raw()["h"]).data_ptr() == weights["h"].data_ptr()


# --- in


@settings(max_examples=60, deadline=None)
@given(dtype=st.sampled_from(sorted(DTYPES)), shape=shapes)
def test_an_array_of_another_library_is_copied_bit_for_bit(dtype, shape):
    tensor = raw(dtype, shape, read_only=False)
    item = source("w", Producer(tensor))
    assert (item.dtype, item.shape, item.nbytes) == (dtype, shape, len(tensor.data))
    assert copied(item) == bytes(tensor.data)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_host_memory_is_read_where_it_is(dtype):
    data = bytearray(32)
    item = source("w", Producer(RawTensor(dtype, (32 // DTYPES[dtype],), memoryview(data))))
    data[5] = 77  # what was copied before now would not show it
    assert copied(item) == bytes(data)


def test_strided_arrays_arrive_as_what_they_show():
    base = np.arange(60, dtype=np.float32).reshape(6, 10)
    for array in (base.T, base[::2, 1::3], base[::-1], np.broadcast_to(base[0], (3, 10)), np.asfortranarray(base)):
        item = source("w", array)
        assert item.shape == array.shape
        assert copied(item) == np.ascontiguousarray(array).tobytes()


def test_a_numpy_array_of_the_other_byte_order_is_turned():
    array = np.arange(5, dtype=np.float32)
    item = source("w", array.astype(array.dtype.newbyteorder()))
    assert item.dtype == "float32"
    assert copied(item) == array.tobytes()


def test_plain_buffers_need_no_library(monkeypatch):
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    item = source("w", array)
    assert (item.dtype, item.shape) == ("int32", (2, 3))
    assert copied(item) == array.tobytes()


def test_an_array_of_tvm_arrives(stage):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    values = np.arange(12, dtype=np.float16).reshape(3, 4)
    weights = stage([("w", tvm_ffi.from_dlpack(values.copy()))])
    assert np.array_equal(np.from_dlpack(weights.raw()["w"]), values)
    assert np.array_equal(np.from_dlpack(tvm_ffi.from_dlpack(weights["w"])), values)


@pytest.mark.parametrize("kind", ["float64", "bfloat16"])  # numpy reads the first, torch the second
def test_two_arrays_on_one_memory_are_tied_while_both_live(stage, kind):
    shared, own = (torch.arange(4).to(getattr(torch, kind)) for _ in range(2))
    first, second = Producer(shared), Producer(shared)
    weights = stage([("embed", first), ("head", second), ("other", Producer(own))])
    assert list(weights) == ["embed", "other"]
    assert dict(weights.tied) == {"head": "embed"}


def test_an_array_that_is_gone_ties_nothing(stage):
    weights = stage((f"w{i}", Producer(np.full(1000, float(i)))) for i in range(20))
    assert [float(np.from_dlpack(raw)[0]) for raw in weights.raw().values()] == [float(i) for i in range(20)]


def test_a_source_refers_weakly_to_what_it_copies():
    producer = Producer(np.arange(4.0))
    item, gone = source("w", producer), weakref.ref(producer)
    assert item.alive() is producer
    del producer
    gc.collect()
    assert gone() is None
    assert item.alive() is None


def test_a_ready_source_passes():
    item = source("w", b"abc")
    assert source("w", item) is item


def test_a_dtype_that_cannot_travel_is_named():
    with pytest.raises(ManifestInvalid, match="'w': found the dtype complex64"):
        source("w", Producer(np.zeros(2, np.complex64)))


@pytest.mark.parametrize("value", [np.array(["text"]), np.array([object()]), np.array([1], "M8[s]")])
def test_an_array_that_is_no_tensor_is_refused(value):
    with pytest.raises(ManifestInvalid, match="'w'"):
        source("w", value)


def test_a_negative_stride_does_not_end_the_process():
    array = np.arange(8, dtype=np.complex64)[::-1]
    with pytest.raises(ManifestInvalid, match="'w': found the dtype complex64"):
        source("w", array)
    with pytest.raises(ManifestInvalid, match="expected none below 0 for torch"):
        torch_view("w", Producer(np.arange(8)[::-1]))


@pytest.mark.parametrize("device", [(2, 0), (10, 1), (99, 0)])
def test_device_memory_without_torch_says_what_is_missing(monkeypatch, device):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ManifestInvalid, match=r"'w': found a Producer in .* memory.*tailrace-paramserver\[torch\]"):
        source("w", Producer(np.zeros(2), device))


def test_host_memory_without_numpy_and_torch_says_what_is_missing(monkeypatch):
    producer = Producer(np.zeros(2))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(ManifestInvalid, match="found a Producer in CPU memory, which torch must read"):
        source("w", producer)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: what is missing is not missing")
def test_device_memory_that_this_torch_cannot_read_is_refused():
    with pytest.raises(ManifestInvalid, match="found a Producer in CUDA memory that torch cannot read"):
        source("w", Producer(np.zeros(2), (2, 0)))


@pytest.mark.parametrize("answer", [None, (), ("cuda", 0)])
def test_a_producer_that_does_not_say_where_its_memory_is(answer):
    class Vague(Producer):
        def __dlpack_device__(self):
            return answer

    with pytest.raises(ManifestInvalid, match="without a DLPack device"):
        source("w", Vague(np.zeros(2)))


def test_a_producer_that_refuses_is_named():
    wants_gradients = Producer(torch.zeros(2, requires_grad=True))
    with pytest.raises(ManifestInvalid, match=r"'w'.*require gradient") as caught:
        source("w", wants_gradients)
    assert isinstance(caught.value, ParamServerError)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_device_memory_is_copied_once(dtype):
    nbytes = 64 * DTYPES[dtype]
    tensor = (
        torch.frombuffer(bytearray(some_bytes(nbytes, dtype)), dtype=torch.uint8).cuda().view(getattr(torch, dtype))
    )
    item = source("w", Producer(tensor))
    assert item.dtype == dtype
    before = torch.cuda.memory_allocated()
    assert copied(item) == bits(tensor.cpu())
    assert torch.cuda.memory_allocated() == before


REUSED = {
    "torch": (torch.zeros(1000), lambda buffer, value: buffer.fill_(value)),
    "numpy": (np.zeros(1000, np.float32), lambda buffer, value: buffer.fill(value)),
    "raw": (
        RawTensor("float32", (1000,), np.zeros(1000, np.float32)),
        lambda buffer, value: buffer.data.fill(value),
    ),
}


@pytest.mark.parametrize("cast", [None, "bfloat16"])
@pytest.mark.parametrize("kind", REUSED)
def test_a_generator_that_fills_one_buffer_again_and_again_ties_nothing_that_differs(stage, kind, cast):
    """Every later tensor of that shape was the first one, by another name."""
    buffer, write = REUSED[kind]

    def gathered():
        for name, value in (("a", 1.0), ("b", 2.0), ("b_too", 2.0), ("c", 3.0), ("a_again", 1.0)):
            write(buffer, value)
            yield name, buffer

    weights = stage(gathered() if cast is None else Cast(cast, lambda *_: True).apply(gathered()))
    assert {name: float(weights[name][0]) for name in weights} == {"a": 1.0, "b": 2.0, "c": 3.0, "a_again": 1.0}
    assert {float(weights[name][-1]) for name in weights} == {1.0, 2.0, 3.0}
    assert dict(weights.tied) == {"b_too": "b"}


def test_one_memory_that_is_read_with_another_sign_is_not_tied(stage):
    values = torch.tensor([1 + 2j, 3 - 4j])
    weights = stage([("imag", values.imag), ("conjugate", values.conj().imag)])
    assert [weights[name].tolist() for name in weights] == [[2.0, -4.0], [-2.0, 4.0]]


@pytest.mark.parametrize("empty", [np.zeros((0, 3), np.float32), RawTensor("float32", (0, 3), b"")])
def test_a_version_may_begin_with_a_tensor_of_no_elements(stage, empty):
    weights = stage([("empty", empty), ("w", np.ones(2, np.float32))])
    assert [tuple(weights[name].shape) for name in weights] == [(0, 3), (2,)]


def test_a_buffer_that_python_cannot_read_is_named():
    with pytest.raises(ManifestInvalid, match="'w': found a ndarray"):
        source("w", RawTensor("int64", (2,), np.zeros(2, "M8[s]")))
