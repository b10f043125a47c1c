"""Tensor cores through NVIDIA's Data Center GPU Manager: ``dcgmi dmon`` prints a line for each GPU and second."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence

from tailrace.faulttol.errors import UnreadableError

_FIELD = "1004"  # DCGM_FI_PROF_PIPE_TENSOR_ACTIVE: the share of cycles in which a tensor pipe works
_EVERY_MS = 1_000
_FIRST_LINE_S = 10.0


class Dcgm:
    """Reads what a running ``dcgmi dmon`` prints."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._most = 0.0
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
        process = subprocess.Popen(  # noqa: S603 - a program of the PATH, and numbers
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        reader = cls(process)
        if reader._heard.wait(_FIRST_LINE_S) and process.poll() is None:
            return reader
        reader.close()
        return None

    def busy(self) -> float:
        """See `TensorCores.busy`."""
        if self._process.poll() is not None:
            raise UnreadableError(f"dcgmi ended with {self._process.returncode}, expected it to go on")
        with self._lock:
            most, self._most = self._most, 0.0
        return most

    def close(self) -> None:
        """See `TensorCores.close`."""
        self._process.kill()
        self._process.wait()
        self._thread.join()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for share in shares(lines):
                with self._lock:
                    self._most = max(self._most, share)
                self._heard.set()
        self._heard.set()


def shares(lines: Iterable[str]) -> Iterator[float]:
    """The numbers of ``GPU 0     0.731``; headings, and GPUs that say ``N/A``, have none."""
    for line in lines:
        match line.split():
            case ["GPU", _, number]:
                try:
                    yield float(number)
                except ValueError:
                    continue
