from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tailrace.paramserver.errors import TransportUnavailable
from tailrace.paramserver.transport.device import DeviceMemory, _extent, device_memory
from tailrace.paramserver.transport.protocol import load

FAKE = DeviceMemory("weights", 4096, 100, 0, None)


def test_a_part_is_a_range_and_never_sticks_out():
    assert (FAKE.part(10, 90).address, FAKE.part(10, 90).nbytes) == (4106, 90)
    for offset, nbytes in [(-1, 1), (0, 101), (100, 1), (5, -1)]:
        with pytest.raises(ValueError, match="expected it within 100"):
            FAKE.part(offset, nbytes)


@pytest.mark.parametrize("name", ["shm", "tcp"])
def test_transports_of_host_memory_refuse_a_device(name):
    with pytest.raises(TransportUnavailable, match=f"'weights': found memory of a device, which {name} cannot export"):
        load(name).export(FAKE)


def test_an_array_elsewhere_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(TransportUnavailable, match=r"found an array on the DLPack device 1, expected CUDA"):
        device_memory(torch.zeros(3))
    with pytest.raises(TransportUnavailable, match="found a list, expected an array with DLPack"):
        device_memory([1, 2])


def test_the_extent_of_a_capsule_is_that_of_its_array():
    torch = pytest.importorskip("torch")
    whole = torch.arange(60, dtype=torch.float32).reshape(5, 12)
    for array in (whole, whole[2:], whole.view(torch.bfloat16), whole.view(torch.uint8)[1:3], whole[:, :12]):
        found = _extent(array.__dlpack__(), "x")
        assert found == (array.data_ptr(), array.numel() * array.element_size())
    for array in (whole[:, 1:], whole.t(), whole[::2]):
        with pytest.raises(TransportUnavailable, match="with gaps"):
            _extent(array.__dlpack__(), "x")


def test_memory_of_torch_is_exported_from_its_own_device_once_its_stream_has_ended(monkeypatch):
    torch = pytest.importorskip("torch")
    begun = []

    class OnThirdGPU(torch.Tensor):
        def __dlpack_device__(self):
            return 2, 3

        def __dlpack__(self, **options):
            begun.append("exported")
            return torch.Tensor.__dlpack__(self.as_subclass(torch.Tensor), **options)

    @contextmanager
    def on(number):
        begun.append(number)
        yield
        begun.append("left")

    stream = SimpleNamespace(synchronize=lambda: begun.append("awaited"))
    monkeypatch.setattr(torch.cuda, "device", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    weights = torch.zeros(5).as_subclass(OnThirdGPU).requires_grad_()
    found = device_memory(weights)
    assert (found.address, found.nbytes, found.device) == (weights.data_ptr(), 20, 3)
    assert begun == [3, "awaited", "exported", "left"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ucx", "nixl"])
def test_device_memory_is_read_into_device_and_host_memory(name):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    try:
        transport = load(name)
    except TransportUnavailable as error:
        pytest.skip(str(error))
    weights = torch.arange(2**20, dtype=torch.int32, device="cuda")
    target = torch.zeros_like(weights)
    torch.cuda.synchronize()
    export = transport.export(device_memory(weights))
    source = transport.open(export.descriptor, timeout_s=30.0)
    try:
        source.read_into(device_memory(target), 0, 30.0)
        host = bytearray(4096)
        source.read_into(memoryview(host), 8192, 30.0)
    finally:
        source.close()
        export.close()
    torch.cuda.synchronize()
    assert torch.equal(target, weights)
    assert bytes(host) == bytes(weights.cpu().numpy())[8192:12288]
