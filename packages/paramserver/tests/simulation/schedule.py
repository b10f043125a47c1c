"""What happens in one simulated run, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

STALL_S = 1.0
SLOT_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class Publication:
    """A version to publish.

    Args:
        sizes: of its tensors in bytes.
        wait_s: how long its publisher waits for it, or None.
        sealed_s: it is revealed so much later, or published for all to see.
    """

    at_s: float
    version: int
    sizes: tuple[int, ...]
    wait_s: float | None
    sealed_s: float | None


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    """A reader on a host. Near a relay it reads shared memory.

    Args:
        relay: that it prefers.
        others: that it turns to when that one fails; nobody else if it is alone.
        pulls: over the network in any case.
        rounds: pause before, lease duration, how much longer it holds it than it stays, wait for the version, checksums
            compared, and whether it waits for the version after the newest.
    """

    host: str
    relay: int
    others: tuple[int, ...]
    at_s: float
    pulls: bool
    rounds: tuple[tuple[float, float, float, float, bool, bool], ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong.

    Args:
        kind: see `simulation.faults`.
        at_s: when.
        target: which relay, reader or publisher, or pair of hosts.
        for_s: until it is over; a killed relay starts anew then, unless it is negative.
        how: "end" (the kernel of the host ends the connections), "silent", or a factor.
        after_bytes: rather than `at_s`, once the target has sent so many bytes from then on.
    """

    kind: str
    at_s: float
    target: tuple[int, ...]
    for_s: float
    how: str = "end"
    after_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Schedule:
    """See the module."""

    seed: int
    hosts: tuple[str, ...]  # of the relays, in their first order
    publisher_hosts: tuple[str, ...]
    fanout: int
    slots: int
    chunk_bytes: int
    bandwidth: float
    latency_s: float
    capacity: int
    short: float
    preempt: float
    skews_s: tuple[float, ...]
    publications: tuple[tuple[Publication, ...], ...]  # of each publisher after the other
    readers: tuple[ReaderPlan, ...]
    faults: tuple[Fault, ...]
    detect_s: float
    grouped: bool  # a relay group repairs, or a script
    codecs: tuple[str, ...]
    alike: bool  # versions differ in few of their bytes
    borrows: bool  # publishers copy into memory that a relay on their host lends

    def describe(self) -> str:
        """The schedule as text."""
        setting = (
            f"seed {self.seed}: {len(self.hosts)} relays on {', '.join(self.hosts)}, fan-out {self.fanout}, "
            f"{self.slots} slots, chunks of {self.chunk_bytes} bytes, {self.bandwidth:.0f} bytes/s, "
            f"latency {self.latency_s:.4f} s, buffers of {self.capacity} bytes, short {self.short}, "
            f"preemption {self.preempt}, detection {self.detect_s:.2f} s, "
            f"repaired by {'a group' if self.grouped else 'a script'}, codecs {self.codecs}, borrows {self.borrows}"
        )
        lines = [
            setting,
            *(
                f"  publisher {i} on {self.publisher_hosts[i]}: {p}"
                for i, ps in enumerate(self.publications)
                for p in ps
            ),
            *(f"  reader {i}: {reader}" for i, reader in enumerate(self.readers)),
            *(f"  fault: {fault}" for fault in self.faults),
        ]
        return "\n".join(lines)


def draw(seed: int) -> Schedule:
    """The schedule of a seed."""
    rng = random.Random(f"schedule {seed}")
    sites = rng.choice([1, 1, 2])
    count = rng.choice([2, 2, 3, 3, 4, 5, 6, 8])
    hosts = tuple(f"10.0.{rng.randrange(sites)}.{i + 1}" for i in range(count))
    fanout = rng.choice([1, 1, 2, 3])
    publishers = 1
    faults, quiet = list[Fault](), seed % 8 == 0  # without faults nothing may fail at all
    for _ in range(0 if quiet else rng.choice([1, 1, 1, 2, 2, 3, 4])):
        faults.append(_fault(rng, hosts))
    if any(fault.kind == "kill publisher" for fault in faults):
        publishers = 2
        faults = [f for i, f in enumerate(faults) if f.kind != "kill publisher" or _first(faults, i)]
    sizes = tuple(rng.choice([64, 100, 700, 1500]) for _ in range(rng.choice([1, 2, 3])))
    return Schedule(
        seed=seed,
        hosts=hosts,
        publisher_hosts=tuple(rng.choice([f"10.0.0.{100 + i}", hosts[0]]) for i in range(publishers)),
        fanout=fanout,
        slots=rng.choice([2, 2, 3]),
        chunk_bytes=rng.choice([64, 128, 256]),
        bandwidth=rng.choice([10_000.0, 30_000.0, 100_000.0]),
        latency_s=rng.choice([0.0002, 0.002]),
        capacity=rng.choice([256, 600, 4096]),
        short=rng.choice([0.0, 0.0, 0.3]),
        preempt=rng.choice([0.0, 0.02, 0.2]),
        skews_s=tuple(rng.choice([0.0, -3.0, 3.0, 50.0]) for _ in range(count + publishers)),
        publications=tuple(_publications(rng, index, sizes) for index in range(publishers)),
        readers=tuple(_reader(rng, hosts) for _ in range(rng.choice([1, 2, 3, 4]))),
        faults=tuple(faults),
        detect_s=rng.choice([0.05, 0.3, 1.0]),
        grouped=rng.random() < 0.4,
        codecs=rng.choice([(), (), ("delta",)]),
        alike=rng.random() < 0.5,
        borrows=rng.random() < 0.7,
    )


def _first(faults: list[Fault], index: int) -> bool:
    return all(fault.kind != "kill publisher" for fault in faults[:index])


def _publications(rng: random.Random, publisher: int, sizes: tuple[int, ...]) -> tuple[Publication, ...]:
    at, version, drawn = 0.2, 0 if publisher == 0 else rng.choice([0, 1, 2, 5]), list[Publication]()
    sealing = rng.random() < 0.3
    for _ in range(rng.choice([1, 2, 3, 4])):
        at += rng.choice([0.0, 0.01, 0.2, 0.7]) * rng.random() * 2
        # Sometimes another layout: that must not meet what is left of the one before.
        some = sizes if rng.random() < 0.8 else (*sizes[1:], rng.choice([40, 300, 2000]))
        sealed_s = round(rng.choice([0.02, 1.0]) * rng.random(), 4) if sealing and rng.random() < 0.7 else None
        drawn.append(Publication(round(at, 4), version, some, rng.choice([None, 0.1, 3.0]), sealed_s))
        version += rng.choice([1, 1, 1, 2])
    return tuple(drawn)


def _reader(rng: random.Random, hosts: tuple[str, ...]) -> ReaderPlan:
    relay = rng.randrange(len(hosts))
    host = rng.choice([hosts[relay], hosts[relay], "10.0.0.77", "10.0.1.78"])
    rounds = tuple(
        (
            round(rng.random() * rng.choice([0.05, 1.0]), 4),
            round(rng.choice([0.0, 0.05, 1.0]) * rng.random(), 4),
            rng.choice([30.0, 30.0, 30.0, -0.01]),
            rng.choice([0.0, 0.5, 4.0]),
            rng.random() < 0.5,
            rng.random() < 0.5,
        )
        for _ in range(rng.choice([1, 2, 3, 4]))
    )
    others = [index for index in range(len(hosts)) if index != relay]
    rng.shuffle(others)
    some = tuple(others[:2]) if rng.random() < 0.4 else ()
    return ReaderPlan(host, relay, some, round(rng.random() * 2, 4), rng.random() < 0.3, rounds)


def _fault(rng: random.Random, hosts: tuple[str, ...]) -> Fault:
    at = round(0.15 + rng.random() * rng.choice([0.5, 1.0, 2.5]), 4)
    for_s = round(rng.choice([0.1, 0.5, 1.5, 4.0]) * (0.5 + rng.random()), 4)
    relay = rng.randrange(len(hosts))
    after = rng.choice([None, rng.randrange(1, 4000)])
    kind = rng.choice(
        [
            *[
                "kill relay",
                "kill relay",
                "kill master",
                "kill source",
                "kill publisher",
                "kill publisher",
                "kill reader",
            ],
            *["cut", "cut", "slow", "suspend", "suspend", "damage", "damage"],
        ]
    )
    how = rng.choice(["end", "end", "silent"])
    if kind in ("kill relay", "kill master", "kill source"):
        return Fault(kind, at, (relay,), rng.choice([for_s, for_s, -1.0]), how, after)
    if kind in ("kill publisher", "kill reader", "suspend"):
        return Fault(kind, at, (relay,), for_s, how, after)
    other = rng.randrange(-1, len(hosts))  # -1: the publisher
    if kind == "slow":
        how = rng.choice(["0.3", "0.05", "0.01"])
    return Fault(kind, at, (relay, other), for_s, how, None)
