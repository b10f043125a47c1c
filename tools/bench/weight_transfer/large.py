"""A model that hardly fits: publisher to relay to reader, each a process, with the memory that each takes for itself.

The publisher's staging and the relay's slot are the two copies of it on this machine, both shared memory: the relay copies
from the staging, so it maps both. The reader leases and verifies all of it in place, then copies it out tensor by tensor,
verified again, into one buffer that it uses again. `private` is the most anonymous memory that a process had, `shared` the
most that it had mapped of shared memory.

As a script it is one of the three processes: publisher or reader.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.paramserver import Publisher, RawTensor, RelayProcess, RelayReader, new_token

_TENSOR = 64 * 2**20


@dataclass(frozen=True)
class Moved:
    """What it took."""

    nbytes: int
    seconds: float
    private_mib: dict[str, float]
    shared_mib: dict[str, float]


class Watch:
    """The peaks of processes' memory, looked at every 20 ms."""

    def __init__(self, processes: dict[str, int]) -> None:
        self.peaks: dict[str, tuple[float, float]] = dict.fromkeys(processes, (0.0, 0.0))
        self._processes, self._done = processes, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(0.02):
            for name, pid in self._processes.items():
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                found = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
                if "RssAnon" in found:
                    now = [int(found[field].split()[0]) / 1024 for field in ("RssAnon", "RssShmem")]
                    before = self.peaks[name]
                    self.peaks[name] = (max(before[0], now[0]), max(before[1], now[1]))


def measured(nbytes: int) -> Moved:
    """Move a model of so many bytes."""
    found = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = 1024 * int(found["MemAvailable"].split()[0])
    if free < 2.2 * nbytes:
        raise SystemExit(
            f"found {free / 2**30:.1f} GiB of free memory, expected {2.2 * nbytes / 2**30:.1f}: "
            "staging and slot are a copy each; use a smaller --gib"
        )
    token = new_token()
    with RelayProcess.start(f"bench-large-{os.getpid()}", token=token) as relay:
        environment = {**os.environ, "TAILRACE_RELAY_TOKEN": token}
        sides = {
            side: subprocess.Popen(
                [sys.executable, __file__, side, relay.address, str(nbytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
            )
            for side in ("publisher", "reader")
        }
        watch = Watch({"relay": relay.pid, **{side: process.pid for side, process in sides.items()}})
        try:
            for process in sides.values():
                _hear(process)
            start = time.perf_counter()
            for process in sides.values():
                assert process.stdin is not None
                process.stdin.write(b"go\n")
                process.stdin.flush()
            for process in reversed(sides.values()):
                _hear(process)
            seconds = time.perf_counter() - start
        finally:
            watch.close()
            for process in sides.values():
                process.kill()
                process.wait()
    peaks = watch.peaks
    return Moved(nbytes, seconds, {n: p[0] for n, p in peaks.items()}, {n: p[1] for n, p in peaks.items()})


def _hear(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a process of the large model ended with status {process.wait()}")
    return json.loads(line)


def _tensors(nbytes: int) -> Iterator[tuple[str, RawTensor]]:
    """Tensors as a trainer gathers them: one at a time, so that no second copy of the model is anywhere."""
    for number in range(nbytes // _TENSOR):
        yield f"layer.{number}", RawTensor("uint8", (_TENSOR,), _content(number))


def _content(number: int) -> bytes:
    return number.to_bytes(8, "little") * (_TENSOR // 8)


def main() -> None:
    side, address, nbytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
    token = os.environ["TAILRACE_RELAY_TOKEN"]
    print(json.dumps({"ready": True}), flush=True)
    sys.stdin.readline()
    if side == "publisher":
        with Publisher(address, token=token) as publisher:
            publisher.publish(1, _tensors(nbytes))
            publisher.wait(1, 600)
            print(json.dumps({"done": True}), flush=True)
            sys.stdin.readline()
    else:
        buffer = bytearray(_TENSOR)
        with RelayReader(address, token=token) as reader, reader.lease(1, timeout_s=600) as weights:
            for number, name in enumerate(weights):
                weights.copy_into({name: buffer})
                if buffer != _content(number):
                    raise SystemExit(f"{name} arrived wrong")
            print(json.dumps({"done": True}), flush=True)


if __name__ == "__main__":
    main()
