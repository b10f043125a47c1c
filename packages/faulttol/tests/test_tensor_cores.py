"""Tensor cores are read as DCGM and NVML tell of them. Stand-ins tell it here; where there is a GPU, it does."""

import shutil
import stat
import sys
import time
from types import SimpleNamespace

import pytest

from tailrace.faulttol.tensor_cores import Dcgm, Nvml, UnreadableError, open_tensor_cores, own_devices, shares

PRINTED = """#Entity   TENSO
ID
GPU 0     0.000
GPU 1     0.731
GPU 2     N/A

"""


@pytest.mark.parametrize(
    ("value", "devices"), [(None, ()), ("", ()), ("0", ("0",)), ("2, 3", ("2", "3")), ("GPU-8f,1", ("GPU-8f", "1"))]
)
def test_the_devices_of_a_process_are_those_it_was_given(value, devices):
    assert own_devices({} if value is None else {"CUDA_VISIBLE_DEVICES": value}) == devices


def test_nothing_is_read_where_no_device_was_given():
    assert open_tensor_cores(()) is None


def test_dcgm_prints_a_share_for_each_gpu():
    assert list(shares(PRINTED.splitlines())) == [0.0, 0.731]


@pytest.fixture
def dcgmi(tmp_path):
    """A program that prints what it is told, and waits."""

    def made(body):
        path = tmp_path / "dcgmi"
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return made


def until(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_dcgm_tells_the_most_since_the_last_reading(dcgmi, tmp_path):
    asked = tmp_path / "asked"
    reader = Dcgm.opened(("0", "1"), dcgmi(f"echo \"$@\" > {asked}\nprintf '%s' '{PRINTED}'\nexec sleep 60"))
    assert reader is not None
    try:
        most = []
        until(lambda: most.append(reader.busy()) or max(most) == 0.731)
        assert reader.busy() == 0.0
        assert asked.read_text().split() == ["dmon", "-e", "1004", "-i", "0,1", "-d", "1000"]
    finally:
        reader.close()


def test_dcgm_that_ends_is_unreadable(dcgmi):
    reader = Dcgm.opened(("0",), dcgmi("echo 'GPU 0 0.5'\nsleep 1\nexit 3"))
    assert reader is not None
    reader._child.wait(20)
    with pytest.raises(UnreadableError, match="dcgmi ended with 3"):
        reader.busy()
    reader.close()


@pytest.mark.parametrize(
    ("devices", "body"),
    [
        (("0",), "echo 'Error: unable to establish a connection to the specified host: localhost' >&2; exit 1"),
        (("GPU-8f",), "echo 'GPU 0 0.5'; exec sleep 60"),
    ],
)
def test_without_a_host_engine_or_for_a_uuid_there_is_no_dcgm(dcgmi, devices, body):
    assert Dcgm.opened(devices, dcgmi(body)) is None


def test_without_the_program_there_is_no_dcgm():
    assert Dcgm.opened(("0",), "no-such-dcgmi") is None


def nvml(monkeypatch, utilizations, *, supported=True, returns=0):
    """The real package with a library that answers as NVML is documented to. Samples count up; `freed` has those given back."""
    pynvml = pytest.importorskip("pynvml")
    samples, freed = iter(range(1, 100)), []

    def metrics(asked):
        assert (asked.version, asked.numMetrics, asked.metrics[0].metricId) == (1, 1, 5)
        asked.metrics[0].nvmlReturn, asked.metrics[0].value = returns, next(utilizations)
        return asked

    kinds = pynvml.c_nvmlGpmSample_t, pynvml.struct_c_nvmlGpmSample_t
    for name, stand_in in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: freed.append("all"),
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlGpmQueryDeviceSupport": lambda handle: SimpleNamespace(isSupportedDevice=supported),
        "nvmlGpmSampleAlloc": lambda: kinds[0](kinds[1]()),
        "nvmlGpmSampleGet": lambda handle, sample: next(samples) and sample,
        "nvmlGpmSampleFree": lambda sample: freed.append("one"),
        "nvmlGpmMetricsGet": metrics,
    }.items():
        monkeypatch.setattr(pynvml, name, stand_in)
    return freed


def test_nvml_compares_two_samples_of_each_gpu(monkeypatch):
    freed = nvml(monkeypatch, iter([0.0, 42.0, 0.0, 0.0]))
    reader = Nvml.opened(("0", "GPU-8f"))
    assert [reader.busy(), reader.busy()] == [0.42, 0.0]
    reader.close()
    assert freed == ["one"] * 6 + ["all"]  # two of each reading, and the last two


def test_a_gpu_that_nvml_cannot_measure_is_not_read(monkeypatch):
    freed = nvml(monkeypatch, iter(()), supported=False)
    assert Nvml.opened(("0",)) is None
    assert freed == ["all"]


def test_nvml_that_fails_is_unreadable(monkeypatch):
    nvml(monkeypatch, iter([0.0]), returns=15)  # NVML_ERROR_GPU_IS_LOST
    reader = Nvml.opened(("0",))
    with pytest.raises(UnreadableError, match="NVML said"):
        reader.busy()


def test_without_the_package_there_is_no_nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert Nvml.opened(("0",)) is None


@pytest.mark.gpu
def test_a_product_of_matrices_is_seen_and_a_rest_is_not():
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs CUDA")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs CUDA")
    reader = open_tensor_cores(own_devices() or ("0",))
    if reader is None:
        pytest.skip("neither DCGM nor NVML reads this GPU's tensor cores")
    try:
        torch.cuda.synchronize()
        time.sleep(3)
        reader.busy()
        time.sleep(3)
        assert reader.busy() < 0.001
        left = torch.ones(8_192, 8_192, dtype=torch.bfloat16, device="cuda")
        end = time.monotonic() + 3
        while time.monotonic() < end:
            left @ left
            torch.cuda.synchronize()
        assert reader.busy() > 0.1
    finally:
        reader.close()
