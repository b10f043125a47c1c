"""Whether the tensor cores of GPUs work: the sign of a trainer that says nothing of its micro-batches (RobustRL, section 4).

A rank that waits for another in a collective keeps its GPU busy and answers its heartbeat; its tensor cores stand still. They
are read through DCGM (Volta and later, a running host engine), else through NVML's performance metrics (Hopper and later).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tailrace.faulttol.errors import UnreadableError
from tailrace.processes import Child, ChildEndedError, ChildTimeoutError, LineError

_FIELD = "1004"  # DCGM_FI_PROF_PIPE_TENSOR_ACTIVE: the share of cycles in which a tensor pipe works
_EVERY_MS = 1_000
_FIRST_LINE_S = 10.0
_LOOK_S = 0.5  # between two looks whether to go on listening
_CLOSE_S = 5.0


__all__ = ["TensorCores", "UnreadableError", "open_tensor_cores", "own_devices"]


class Dcgm:
    """Reads what a running ``dcgmi dmon`` of NVIDIA's Data Center GPU Manager prints: a line for each GPU and second."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._most = 0.0
        self._ended = False
        self._heard = threading.Event()  # of a first line with a number, or of the end
        self._thread = threading.Thread(target=self._listen, name="tensor-cores", daemon=True)
        self._thread.start()

    @classmethod
    def opened(cls, devices: Sequence[str], program: str = "dcgmi") -> Dcgm | None:
        """A reader; None where DCGM is not installed, its host engine does not run, or it cannot read these GPUs.

        Only numbers are known to it, no UUIDs.
        """
        found = shutil.which(program)
        if found is None or not all(one.isdecimal() for one in devices):
            return None
        command = [found, "dmon", "-e", _FIELD, "-i", ",".join(devices), "-d", str(_EVERY_MS)]
        reader = cls(Child(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
        if reader._heard.wait(_FIRST_LINE_S) and not reader._ended:
            return reader
        reader.close()
        return None

    def busy(self) -> float:
        """See `TensorCores.busy`."""
        status = self._child.poll()
        if status is not None:
            raise UnreadableError(f"dcgmi ended with {status}, expected it to go on")
        with self._lock:
            most, self._most = self._most, 0.0
        return most

    def close(self) -> None:
        """See `TensorCores.close`."""
        self._closing.set()
        self._child.terminate()
        self._thread.join(_CLOSE_S)
        self._child.kill(_CLOSE_S)

    def _listen(self) -> None:
        for share in shares(self._lines()):
            with self._lock:
                self._most = max(self._most, share)
            self._heard.set()
        self._ended = True  # its output ends before it does: `poll` may still say that it runs
        self._heard.set()

    def _lines(self) -> Iterator[str]:
        """What it prints, until that ends or `close` is called."""
        while not self._closing.is_set():
            with contextlib.suppress(ChildTimeoutError):
                try:
                    yield self._child.line(_LOOK_S).decode(errors="replace")
                except (ChildEndedError, LineError):
                    return


def shares(lines: Iterable[str]) -> Iterator[float]:
    """The numbers of ``GPU 0     0.731``; headings, and GPUs that say ``N/A``, have none."""
    for line in lines:
        match line.split():
            case ["GPU", _, number]:
                try:
                    yield float(number)
                except ValueError:
                    continue


class Nvml:
    """Compares two samples of each GPU's counters, by NVML's performance metrics. One thread uses it."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml, self._handles = nvml, handles
        self._before = [self._sample(handle) for handle in handles]

    @classmethod
    def opened(cls, devices: Sequence[str]) -> Nvml | None:
        """A reader; None without the package ``nvidia-ml-py``, a driver, or metrics of these GPUs."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        try:
            handles = [
                pynvml.nvmlDeviceGetHandleByIndex(int(one))
                if one.isdecimal()
                else pynvml.nvmlDeviceGetHandleByUUID(one)
                for one in devices
            ]
            if all(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice for handle in handles):
                return cls(pynvml, handles)
        except (pynvml.NVMLError, AttributeError):
            pass  # no such GPU, part of one, an old driver or an old package: there is nothing to read
        pynvml.nvmlShutdown()
        return None

    def busy(self) -> float:
        """See `TensorCores.busy`."""
        try:
            return max(self._of(place) for place in range(len(self._handles)))
        except self._nvml.NVMLError as error:
            raise UnreadableError(f"NVML said {error}, expected metrics of the GPU") from error

    def close(self) -> None:
        """See `TensorCores.close`."""
        for sample in self._before:
            self._nvml.nvmlGpmSampleFree(sample)
        self._nvml.nvmlShutdown()

    def _of(self, place: int) -> float:
        before, now = self._before[place], self._sample(self._handles[place])
        self._before[place] = now
        try:
            return self._between(before, now)
        finally:
            self._nvml.nvmlGpmSampleFree(before)

    def _sample(self, handle: Any) -> Any:
        return self._nvml.nvmlGpmSampleGet(handle, self._nvml.nvmlGpmSampleAlloc())

    def _between(self, before: Any, now: Any) -> float:
        asked = self._nvml.c_nvmlGpmMetricsGet_t()
        asked.version, asked.numMetrics = self._nvml.NVML_GPM_METRICS_GET_VERSION, 1
        asked.sample1, asked.sample2 = before, now
        asked.metrics[0].metricId = self._nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
        self._nvml.nvmlGpmMetricsGet(asked)
        if asked.metrics[0].nvmlReturn != self._nvml.NVML_SUCCESS:
            raise self._nvml.NVMLError(asked.metrics[0].nvmlReturn)
        return float(asked.metrics[0].value) / 100


class TensorCores(Protocol):
    """Reads the tensor cores of some GPUs."""

    def busy(self) -> float:
        """The share of the time since the last call in which they worked, 0 to 1; of the GPU where it was the largest.

        Raises:
            UnreadableError: they cannot be read any more.
        """
        ...

    def close(self) -> None:
        """Read no more."""
        ...


def own_devices(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The GPUs that ``CUDA_VISIBLE_DEVICES`` gives this process, as numbers or UUIDs. Empty where it is not set.

    Without it all GPUs of the machine are visible, also those that others compute on, and their work would be taken for ours.
    """
    return tuple(one for one in environment.get("CUDA_VISIBLE_DEVICES", "").replace(" ", "").split(",") if one)


def open_tensor_cores(devices: Sequence[str]) -> TensorCores | None:
    """A reader of the tensor cores of these GPUs; None where neither DCGM nor NVML can read them.

    Args:
        devices: number or UUID of each, as in ``CUDA_VISIBLE_DEVICES``.
    """
    if not devices:
        return None
    return Dcgm.opened(devices) or Nvml.opened(devices)
