"""Tensor cores through NVML's GPU performance metrics, which Hopper and later have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tailrace.faulttol.errors import UnreadableError


class Nvml:
    """Compares two samples of each GPU's counters. One thread uses it."""

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
