"""Random kills, suspensions, cuts and slow links on real relay processes, a schedule after the other on one fleet."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from simulation.oracle import Oracle, raw_bytes
from simulation.proxy import Proxy

from tailrace.paramserver import (
    ChunkDamaged,
    LeaseExpired,
    ParamServerError,
    ProtocolError,
    Publisher,
    RelayProcess,
    RelayReader,
    RelayTimeout,
    RelayUnreachable,
    SlotBusy,
    VersionNotYet,
    VersionRetired,
    VersionSuperseded,
)
from tailrace.paramserver.group.relay_group import RelayGroup

STALL_S = 0.6
SLOT_TIMEOUT_S = 2.0
CHUNK_BYTES = 16 * 1024
RATE = 6e6  # of every link, so that a version takes a while
CONVERGED_S = 25.0

_EXPECTED = (
    ChunkDamaged,
    LeaseExpired,
    ProtocolError,
    RelayTimeout,
    RelayUnreachable,
    SlotBusy,
    VersionNotYet,
    VersionRetired,
    VersionSuperseded,
)
_KINDS = ["kill", "kill", "kill master", "suspend", "silent cut", "reset", "slow", "damage", "kill and leave"]


class Place:
    """Where a relay runs: the proxy stays, the process may be another."""

    def __init__(self, token: str, index: int) -> None:
        self._token = token
        self.name = f"chaos{index}-{os.getpid()}-{uuid.uuid4().hex[:6]}"
        self.proxy = Proxy()
        self.proxy.rate = RATE
        self.suspended = False
        self.start()

    def start(self) -> None:
        """A new process; it cleans up what a killed one left."""
        self.relay = RelayProcess.start(
            self.name, token=self._token, stall_s=STALL_S, slot_timeout_s=SLOT_TIMEOUT_S, known_as=[self.proxy.address]
        )
        self.proxy.target = self.relay.address

    def close(self) -> None:
        """Stop, and leave nothing in shared memory."""
        if not self.relay.alive():
            self.start()
        self.relay.close()
        self.proxy.close()


class Fleet:
    """Some relays, their group, and the schedules that run on them."""

    def __init__(self, token: str, size: int) -> None:
        self._token = token
        self.places = [Place(token, index) for index in range(size)]
        self._version = 0
        self._publishers = 0
        self.oracle = Oracle()
        self.wrong: list[str] = []
        self.seconds_to_converge: list[float] = []
        self.versions_read = 0
        self.faults: dict[str, int] = {}

    def close(self) -> None:
        """Stop all."""
        for place in self.places:
            place.close()

    def run(self, seed: int) -> None:
        """One schedule. What is wrong with it is added to `wrong`."""
        rng = random.Random(f"chaos {seed}")
        places = rng.sample(self.places, rng.randrange(2, len(self.places) + 1))
        log = list[str]()
        start = time.monotonic()

        def note(text: str) -> None:
            log.append(f"{time.monotonic() - start:7.3f}  {text}")

        def fail(text: str) -> None:
            self.wrong.append(f"seed {seed}: {text}\n  " + "\n  ".join([*places_text, *log]))

        places_text = [f"{place.name} behind {place.proxy.address}" for place in places]
        stop = threading.Event()
        with (
            RelayGroup(
                {place.name: place.proxy.address for place in places},
                token=self._token,
                heartbeat_s=0.1,
                dead_after_s=0.8,
            ) as group,
            self._publisher(group, note, fail) as publisher,
        ):
            threads = [
                threading.Thread(target=self._read, args=(rng.random(), place, rng.random() < 0.5, stop, note, fail))
                for place in rng.sample(places, 2)
            ]
            for thread in threads:
                thread.start()
            faults = sorted((0.5 * rng.random(), rng.choice(_KINDS)) for _ in range(rng.choice([1, 1, 2, 3])))
            publications = sorted(0.4 * rng.random() for _ in range(rng.choice([1, 2, 3])))
            todo: list[tuple[float, str]] = [*faults, *((at, "publish") for at in publications)]
            newest = -1
            for at, kind in sorted(todo):
                time.sleep(max(0.0, start + at - time.monotonic()))
                if kind == "publish":
                    newest = self._publish(publisher, rng, note)
                else:
                    self._harm(kind, rng, places, group, todo, note)
            self._mend(places, note)
            over = time.monotonic()
            if self._converged(places, newest, fail, note):
                self.seconds_to_converge.append(time.monotonic() - over)
            stop.set()
            for thread in threads:
                thread.join(30)
                if thread.is_alive():
                    fail("a reader still waits 30 s later")

    @contextlib.contextmanager
    def _publisher(
        self, group: RelayGroup, note: Callable[[str], None], fail: Callable[[str], None]
    ) -> Iterator[Publisher]:
        self._publishers += 1
        if self._publishers % 5 == 0:
            self._version = max(0, self._version - 2)  # a trainer that went back to a checkpoint
        failed = threading.Event()

        def report(version: int, error: ParamServerError | None) -> None:
            note(f"version {version}: {error or 'on the master'}")
            if error is not None and not isinstance(error, VersionSuperseded):
                failed.set()
            if error is not None and not isinstance(error, _EXPECTED):
                fail(f"published version {version}: {type(error).__name__}: {error}")

        publisher = Publisher(
            group.master,
            token=self._token,
            chunk_bytes=CHUNK_BYTES,
            stall_s=STALL_S,
            slot_timeout_s=SLOT_TIMEOUT_S,
            on_published=report,
        )
        group.follow(publisher.retarget)
        over = threading.Event()

        def insist() -> None:
            while not over.wait(0.3):
                if failed.is_set():
                    failed.clear()
                    with contextlib.suppress(RelayUnreachable):
                        publisher.retarget(group.master)

        insisting = threading.Thread(target=insist)
        insisting.start()
        try:
            yield publisher
        finally:
            over.set()
            insisting.join()
            with contextlib.suppress(ParamServerError):
                publisher.close(timeout_s=5)

    def _publish(self, publisher: Publisher, rng: random.Random, note: Callable[[str], None]) -> int:
        self._version += 1
        sizes = tuple(rng.choice([1000, 100_000, 400_000, 900_000]) for _ in range(rng.choice([1, 2])))
        weights = self.oracle.publish(self._publishers, self._version, sizes)
        note(f"publishes version {self._version}: {sum(sizes)} bytes")
        publisher.publish(self._version, list(weights.items()))
        return self._version

    def _harm(
        self,
        kind: str,
        rng: random.Random,
        places: list[Place],
        group: RelayGroup,
        todo: list[tuple[float, str]],
        note: Callable[[str], None],
    ) -> None:
        place = rng.choice(places)
        if kind == "kill master":
            with contextlib.suppress(RelayUnreachable):
                place = next((p for p in places if p.proxy.address == group.master), place)
        note(f"FAULT: {kind} {place.name}")
        self.faults[kind] = self.faults.get(kind, 0) + 1
        match kind:
            case "kill" | "kill master" | "kill and leave":
                place.relay.kill()
                place.suspended = False
                if kind != "kill and leave":
                    place.start()
                    note(f"{place.name} again")
            case "suspend":
                if place.relay.alive():
                    os.kill(place.relay.pid, signal.SIGSTOP)
                    place.suspended = True
            case "silent cut":
                place.proxy.silence(True)
            case "reset":
                place.proxy.reset()
            case "slow":
                place.proxy.rate = 3e5
            case "damage":
                place.proxy.damage += 1

    def _mend(self, places: list[Place], note: Callable[[str], None]) -> None:
        time.sleep(0.4)
        for place in places:
            if not place.relay.alive():
                place.start()
            if place.suspended:
                os.kill(place.relay.pid, signal.SIGCONT)
                place.suspended = False
            place.proxy.rate, place.proxy.damage = RATE, 0
            place.proxy.silence(False)
        note("faults are over")

    def _converged(
        self, places: list[Place], newest: int, fail: Callable[[str], None], note: Callable[[str], None]
    ) -> bool:
        deadline = time.monotonic() + CONVERGED_S
        for place in places:
            # Straight to the relay, and in its shared memory: what its replicas see.
            with RelayReader(place.relay.address, token=self._token, stall_s=5) as reader:
                while True:
                    try:
                        with reader.lease(newest, timeout_s=0.05) as lease:
                            found = self.oracle.wrong(lease.manifest.key, raw_bytes(lease))
                            mine = self.oracle.publisher(lease.manifest.key) == self._publishers
                        if reader.latest() == newest and mine:
                            break
                    except (VersionNotYet, VersionRetired):
                        pass
                    if time.monotonic() > deadline:
                        fail(f"{place.name} shows {reader.versions()} rather than {newest} {CONVERGED_S} s later")
                        return False
                    time.sleep(0.02)
                if found is not None:
                    fail(f"{place.name} showed in the end: {found}")
                    return False
                note(f"{place.name} shows version {newest}")
        return True

    def _read(
        self,
        seed: float,
        place: Place,
        pulls: bool,
        stop: threading.Event,
        note: Callable[[str], None],
        fail: Callable[[str], None],
    ) -> None:
        rng = random.Random(seed)
        try:
            with RelayReader(
                place.proxy.address, token=self._token, same_host=False if pulls else None, stall_s=STALL_S
            ) as reader:
                while not stop.wait(0.02 * rng.random()):
                    try:
                        self._read_once(reader, rng, fail)
                    except _EXPECTED as error:
                        if isinstance(error, ChunkDamaged) and not pulls:
                            fail(f"{place.name} has wrong bytes in its memory: {error}")
                        note(f"reader of {place.name}: {type(error).__name__}: {error}")
                        stop.wait(0.05)
        except BaseException as error:
            fail(f"a reader of {place.name} ended with {type(error).__name__}: {error}")

    def _read_once(self, reader: RelayReader, rng: random.Random, fail: Callable[[str], None]) -> None:
        latest = reader.latest()
        version = (-1 if latest is None else latest) + (rng.random() < 0.2)
        if version < 0:
            return
        seen: list[str | None] = []
        with reader.lease(version, timeout_s=0.3, verify=rng.random() < 0.5) as lease:
            for _ in range(2):
                seen.append(self.oracle.wrong(lease.manifest.key, raw_bytes(lease)))
                time.sleep(0.05 * rng.random())
        self.versions_read += 1
        for wrong in seen:
            if wrong is not None:
                fail(f"a reader saw: {wrong}")
