"""How long a publication stops the trainer, by the number of relays in the chain and of pullers that copy each version.

`at rest`: the next version is published when everybody has the last one. On a host with enough cores that is also the
stall at work; on a few, relays and pullers take the cores that the copy needs, which `at work` shows: there a version is
published while the last one is still on its way.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tailrace.paramserver import Publisher, RelayProcess, new_token, set_chain

from . import model


@dataclass(frozen=True)
class Stall:
    """Seconds of a publication with so many relays, each with one puller."""

    relays: int
    at_rest_s: float
    at_work_s: float
    low_s: float
    high_s: float


class Fleet:
    """A chain of relays, and a process for each that pulls every version."""

    def __init__(self, relays: int, nbytes: int, stack: ExitStack) -> None:
        token, self._version = new_token(), 0
        self._weights = model.on(memoryview(model.arena(model.total_bytes(nbytes))), nbytes)
        started = [
            stack.enter_context(RelayProcess.start(f"bench-{os.getpid()}-{relays}-{number}", token=token))
            for number in range(relays)
        ]
        set_chain([relay.address for relay in started], token=token)
        self._publisher = stack.enter_context(Publisher(started[0].address, token=token))
        self._pullers = [
            subprocess.Popen(
                [sys.executable, "-m", "weight_transfer.puller", relay.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "TAILRACE_RELAY_TOKEN": token, "PYTHONPATH": _path()},
            )
            for relay in started
        ]
        stack.callback(self._stop)

    def publish(self) -> float:
        """The stall in seconds."""
        self._version += 1
        stall = self._publisher.publish(self._version, self._weights.items())
        for puller in self._pullers:
            assert puller.stdin is not None
            puller.stdin.write(f"{self._version}\n".encode())
            puller.stdin.flush()
        return stall

    def rest(self) -> None:
        """Wait until every puller has the last version or passed it over."""
        for puller in self._pullers:
            assert puller.stdout is not None
            while json.loads(puller.stdout.readline())["version"] != self._version:
                pass

    def _stop(self) -> None:
        for puller in self._pullers:
            puller.kill()
            puller.wait()


def measured(counts: tuple[int, ...], nbytes: int, repeats: int) -> tuple[list[Stall], float]:
    """The stall for each number of relays, and the seconds of a plain copy tensor by tensor; all take turns."""
    copies, source = list[float](), model.on(memoryview(model.arena(model.total_bytes(nbytes))), nbytes)
    target = model.on(memoryview(model.arena(model.total_bytes(nbytes))), nbytes)
    rest: dict[int, list[float]] = {count: [] for count in counts}
    work: dict[int, list[float]] = {count: [] for count in counts}
    with ExitStack() as stack:
        fleets = {count: Fleet(count, nbytes, stack) for count in counts}
        for fleet in fleets.values():
            for _ in range(2):  # both staging buffers, every slot, every mapping
                fleet.publish()
                fleet.rest()
        for _ in range(repeats):
            start = time.perf_counter()
            for name, tensor in source.items():
                target[name].data[:] = tensor.data
            copies.append(time.perf_counter() - start)
            for count, fleet in fleets.items():
                rest[count].append(fleet.publish())
                time.sleep(0.02)
                work[count].append(fleet.publish())
                fleet.rest()
    found = [
        Stall(count, statistics.median(rest[count]), statistics.median(work[count]), min(rest[count]), max(rest[count]))
        for count in counts
    ]
    return found, statistics.median(copies)


def _path() -> str:
    return os.pathsep.join([str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")])
