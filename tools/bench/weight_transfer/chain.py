"""A broadcast down a chain of relays on several hosts, beside Laminar's formula; and a relay killed in the middle of one.

    sudo .venv/bin/python tools/bench/weight_transfer/chain.py [--relays 2 4 8] [--mib 64] [--rate 50e6] [--repeats 3]

The hosts are network namespaces with limited links (`hosts.py`). The trainer stands on the master's host; `relays` counts
the relays behind the master, so the formula has one node more. The clock runs from the call of `publish`, its local
copy included, until the version is visible on the last relay; slots and staging memory are warm. The formula gets the
links' rate and a startup latency measured in the same run: what a chunk takes from one relay to the next, its bytes apart.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from hosts import Hosts

from tailrace.paramserver import (
    Publisher,
    RelayProcess,
    RelayReader,
    chain_broadcast_time_s,
    new_token,
    relay_status,
    set_chain,
)
from tailrace.paramserver.chunk_size import broadcast_chunk_bytes
from tailrace.paramserver.group.coordinator import RelayState
from tailrace.paramserver.group.relay_group import RelayGroup

RELAYS = (2, 4, 8)
MIB = 64
RATE = 50e6
WITHIN = 1.10  # times the formula
REBUILT_S = 1.0
_DEADLINE_S = 60.0
_PROBES, _PROBE_BYTES = 1024, 1024


class Fleet:
    """Relays on hosts of their own in one group, and a publisher beside the master. Close it."""

    def __init__(self, hosts: Hosts, count: int, nbytes: int) -> None:
        self.hosts, self.token = hosts, new_token()
        self.relays: list[RelayProcess] = []
        self.version = 0  # the next to publish
        self._open = contextlib.ExitStack()
        with self._open as opening:
            for index in range(count):
                with hosts.inside(index):
                    relay = RelayProcess.start(
                        f"bench-{os.getpid()}-{index}",
                        host=hosts.addresses[index],
                        token=self.token,
                        max_bytes=2 * nbytes,
                        transports=None if index == 0 else (),  # /dev/shm is shared here, unlike on real hosts
                        codecs=(),  # the formula is of whole versions
                    )
                self.relays.append(opening.enter_context(relay))
            self.startup_s = self._startup()
            with hosts.inside(0):
                addresses = {relay.name: relay.address for relay in self.relays}
                # On a machine that is short of cores, silence is no death; a killed process is seen at once in any case.
                self.group = opening.enter_context(RelayGroup(addresses, token=self.token, dead_after_s=15.0))
            self._open = opening.pop_all()

    def publisher(self, chunk_bytes: int) -> Publisher:
        """A trainer on the master's host."""
        with self.hosts.inside(0):
            publisher = Publisher(self.relays[0].address, token=self.token, chunk_bytes=chunk_bytes, codecs=())
        self.group.follow(publisher.retarget)
        return self._open.enter_context(publisher)

    def reader(self, index: int) -> RelayReader:
        """A replica on a relay's host."""
        with self.hosts.inside(index):
            reader = RelayReader(self.relays[index].address, token=self.token, same_host=True)
            reader.versions()  # connected from here
        return self._open.enter_context(reader)

    def close(self) -> None:
        """End everything."""
        self._open.close()

    def _startup(self) -> float:
        """Seconds that a chunk takes from the first relay to the second, its bytes apart.

        The difference between a version of many small chunks and one of a single chunk, medians of five.
        """
        took: dict[int, list[float]] = {1: [], _PROBES: []}
        with self.hosts.inside(0):
            set_chain([relay.address for relay in self.relays[:2]], token=self.token)
            publisher = Publisher(self.relays[0].address, token=self.token, chunk_bytes=_PROBE_BYTES, codecs=())
        with publisher, self.hosts.inside(1), RelayReader(self.relays[1].address, token=self.token) as reader:
            reader.versions()
            for _ in range(6):
                for chunks, seconds in took.items():
                    start = time.perf_counter()
                    publisher.publish(self.version, [("probe", bytes(chunks * _PROBE_BYTES))])
                    with reader.lease(self.version, timeout_s=_DEADLINE_S, verify=False):
                        seconds.append(time.perf_counter() - start)
                    self.version += 1
        one, many = (statistics.median(took[chunks][1:]) for chunks in (1, _PROBES))
        return max(1e-6, (many - one) / (_PROBES - 1) - _PROBE_BYTES / self.hosts.rate)


@contextlib.contextmanager
def fleet(count: int, nbytes: int, rate: float) -> Iterator[Fleet]:
    """Yield so many relays on so many hosts."""
    with Hosts(count, rate) as hosts, contextlib.closing(Fleet(hosts, count, nbytes)) as built:
        yield built


def broadcast(relays: int, nbytes: int, rate: float, repeats: int) -> dict[str, Any]:
    """Seconds of a broadcast to so many relays behind the master, beside the formula."""
    nodes = relays + 1
    weights = b""
    with fleet(nodes, nbytes, rate) as running:
        chunk_bytes = broadcast_chunk_bytes(nbytes, nodes, rate, running.startup_s)
        publisher, last = running.publisher(chunk_bytes), running.reader(relays)
        seconds, stalls = [], []
        first = running.version
        for version in range(first, first + repeats + 2):  # the first two fill both slots for the first time
            weights = secrets.token_bytes(nbytes)
            start = time.perf_counter()
            stall_s = publisher.publish(version, [("weights", weights)])
            with last.lease(version, timeout_s=_DEADLINE_S, verify=False):
                took = time.perf_counter() - start
            if version >= first + 2:
                seconds.append(took)
                stalls.append(stall_s)
            running.group.wait(version, _DEADLINE_S)
        with last.lease(version) as held:
            if bytes(held.raw()["weights"].data) != weights:
                raise AssertionError("the last relay shows other weights than were published")
    formula_s = chain_broadcast_time_s(nbytes, nodes, math.ceil(nbytes / chunk_bytes), rate, running.startup_s)
    return {
        "what": "broadcast",
        "relays": relays,
        "seconds": statistics.median(seconds),
        "formula_s": formula_s,
        "ratio": statistics.median(seconds) / formula_s,
        "all_seconds": seconds,
        "stall_s": statistics.median(stalls),
        "startup_s": running.startup_s,
        "chunk_bytes": chunk_bytes,
        "bytes": nbytes,
        "rate": rate,
    }


def kill(relays: int, nbytes: int, rate: float) -> dict[str, Any]:
    """SIGKILL of the relay in the middle when half of a version has passed it."""
    nodes, victim = relays + 1, (relays + 1) // 2
    weights = secrets.token_bytes(nbytes)
    with fleet(nodes, nbytes, rate) as running:
        chunk_bytes = broadcast_chunk_bytes(nbytes, nodes, rate, running.startup_s)
        publisher = running.publisher(chunk_bytes)
        chunks = math.ceil(nbytes / chunk_bytes)
        last = running.version + 2
        for version in (last - 2, last - 1):
            publisher.publish(version, [("weights", secrets.token_bytes(nbytes))])
            running.group.wait(version, _DEADLINE_S)
        before, after = running.relays[victim - 1], running.relays[victim + 1]
        living = [index for index in range(nodes) if index != victim]
        received = {index: _received(running, index) for index in living}
        took_in = running.hosts.received_bytes(victim + 1)
        publisher.publish(last, [("weights", weights)])
        with running.hosts.inside(0):
            _until(lambda: _arrived(after.address, last, running.token) >= chunks // 2)
            had = _arrived(after.address, last, running.token)
            start = time.perf_counter()
            os.kill(running.relays[victim].pid, 9)
            name = running.relays[victim].name
            _until(lambda: running.group.status()[name].state is RelayState.DEAD)
            seen_s = time.perf_counter() - start
            _until(lambda: after.address in running.group.status()[before.name].next)
            rebuilt_s = time.perf_counter() - start
            _until(lambda: _arrived(after.address, last, running.token) > had + 2)
            flows_s = time.perf_counter() - start
        running.group.wait(last, _DEADLINE_S)
        whole_s = time.perf_counter() - start
        took_in = running.hosts.received_bytes(victim + 1) - took_in
        twice = sum(_received(running, index) - received[index] - chunks for index in living)
        for index in living:
            with running.reader(index).lease(last) as held:
                if bytes(held.raw()["weights"].data) != weights:
                    raise AssertionError(f"relay {index} shows other weights than were published")
    return {
        "what": "kill",
        "relays": relays,
        "seen_s": seen_s,
        "rebuilt_s": rebuilt_s,
        "flows_s": flows_s,
        "whole_s": whole_s,
        "chunks": chunks,
        "had_chunks": had,
        "chunks_twice": twice,
        # The same as the kernel counts it on the link behind the dead relay, in versions: headers, and the chunk that
        # was cut off, are above 1.
        "link_bytes_over_version": took_in / nbytes,
    }


def measured(
    repeats: int, *, relays: tuple[int, ...] = RELAYS, nbytes: int = MIB * 2**20, rate: float = RATE
) -> list[dict[str, Any]]:
    """A row for each number of relays, and one for the kill."""
    rows = [broadcast(count, nbytes, rate, repeats) for count in relays]
    return [*rows, kill(max(4, min(relays)), nbytes, rate)]


def _arrived(address: str, version: int, token: str) -> int:
    """Chunks in place of a version, all once it is visible."""
    status = relay_status(address, token=token)
    if version in status.versions:
        return sys.maxsize
    return int((status.receiving | status.partial).get(str(version), "0").partition("/")[0])


def _received(running: Fleet, index: int) -> int:
    with running.hosts.inside(0):
        return relay_status(running.relays[index].address, token=running.token).transfers["chunks_received"]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {_DEADLINE_S} s in vain")
        time.sleep(0.005)


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="A broadcast down a chain of relays on several hosts.")
    parser.add_argument("--relays", type=int, nargs="+", default=RELAYS, help="behind the master")
    parser.add_argument("--mib", type=int, default=MIB, help="of weights")
    parser.add_argument("--rate", type=float, default=RATE, help="of each link, bytes per second")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    rows = measured(options.repeats, relays=tuple(options.relays), nbytes=options.mib * 2**20, rate=options.rate)
    print(f"{options.mib} MiB over links of {options.rate / 1e6:.0f} MB/s; limit {WITHIN:.2f} times the formula")
    print(
        f"{'relays':>6} {'seconds':>8} {'formula':>8} {'ratio':>6} {'stall ms':>9} {'startup us':>11} {'chunk KiB':>10}"
    )
    for row in rows[:-1]:
        print(
            f"{row['relays']:>6} {row['seconds']:>8.3f} {row['formula_s']:>8.3f} {row['ratio']:>6.3f}"
            f" {1e3 * row['stall_s']:>9.1f} {1e6 * row['startup_s']:>11.0f} {row['chunk_bytes'] // 1024:>10}"
        )
    row = rows[-1]
    print(
        f"SIGKILL in the middle of {row['relays'] + 1} relays, {row['had_chunks']} of {row['chunks']} chunks through: "
        f"seen after {row['seen_s']:.3f} s, rebuilt {row['rebuilt_s']:.3f} s (limit {REBUILT_S:.0f}), "
        f"chunks flow {row['flows_s']:.3f} s, whole everywhere {row['whole_s']:.3f} s; "
        f"{row['chunks_twice']} chunks came twice; the link behind it carried {row['link_bytes_over_version']:.3f} versions"
    )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
