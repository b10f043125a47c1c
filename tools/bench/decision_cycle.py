"""How long the whole controller takes to decide, on a fleet at work: validate, synchronise, migrate, route.

    uv run python tools/bench/decision_cycle.py [--cycles N] [--only SIZE] [--json FILE]

The production controller with StaleFlow's policies and its staleness buffers drives a fleet that advances some seconds between
cycles: replicas decode at the speed of the cost model, trajectories finish, are scored and trained on, versions are published
and pulled. Events that arrive together are handled together, as the executor does it. Timed is every such call: those that
decide are the cycles, the rest is counted by event. Garbage is collected after each training step, as a run does it, and its
longest pause is told beside the cycles, which it is no part of. The limit is the paper's 100 ms (footnote 3). `coordination.py`
times the three policies alone.

The fleet starts empty with a full pool, which is routed over several cycles: the longest of these is reported by itself.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from tailrace import contracts as c
from tailrace.contracts.plugins import load
from tailrace.controller.controller import Controller
from tailrace.controller.spec import PipelineSpec
from tailrace.pipeline.run.launching.garbage_collection import GarbageCollection
from tailrace.repack import ThroughputModel

# StaleFlow, Table 4: Qwen3-30B-A3B on one H20, whose KV cache holds some 300,000 tokens.
TABLE_4, KV_TOKENS, PROMPT, LONGEST = (7.28e-8, 1.72e-3, 1.25e-4, 1.07e-2), 300_000, 120, 20_000
MODEL = ThroughputModel(*TABLE_4)
SIZES = ((16, 1024), (64, 8192), (128, 8192), (1024, 131_072))
SAMPLES, BOUND, TRAIN_S, LIMIT_MS = 16, 3, 60.0, 100.0
STEP_S = 5.0  # the fleet's time between cycles; a whole batch takes minutes


def policy(axis: str, name: str, **options: object) -> object:
    return load(f"tailrace.{axis}", name)(**options)


def controller(replicas: int, trajectories: int) -> Controller:
    cost = dict(zip(("k1", "k2", "k3", "k4"), TABLE_4, strict=True))
    spec = PipelineSpec(
        admission=policy("admission", "bounded", bound=BOUND),
        batching=policy("batching", "redundant", samples=SAMPLES),
        routing=policy("routing", "marginal-throughput", mu=0.3, prompt_tokens=PROMPT, **cost),
        sync=policy("sync", "when-useful"),
        relocation=policy("relocation", "migration", **cost),
        training=policy("training", "full-batch"),
        provisioning=policy("provisioning", "static", count=replicas),
        recovery=policy("recovery", "isolate"),
        sampler=policy("sampler", "fifo"),
        steps=10**6,
        batch_groups=trajectories // (BOUND + 1) // SAMPLES,
        replica_batch=256,
        cycle_s=10**9,  # only ticks decide
        checkpoint_every=10**9,
    )
    return Controller(spec)


@dataclass
class Replica:
    version: int = 0
    last_seq: int = 0
    finished: int = 0
    work: dict[str, list[float]] = field(default_factory=dict)  # tokens so far, tokens in the end

    def snapshot(self, name: str) -> c.Snapshot:
        kv = min(1.0, sum(PROMPT + so_far for so_far, _ in self.work.values()) / KV_TOKENS)
        return c.Snapshot(
            name, kv, len(self.work), 0, self.finished, self.version, self.last_seq, kv_capacity_tokens=KV_TOKENS
        )


class Fleet:
    """Carries commands out at once, and lets time pass."""

    def __init__(self, controller: Controller, seed: int) -> None:
        self.controller, self.numbers, self.now = controller, random.Random(seed), 0.0
        self.replicas: dict[str, Replica] = {}
        self.length: dict[str, float] = {}
        self.kept: dict[str, float] = {}
        self.answers: list[c.Event] = []
        self.stepping: tuple[float, c.Stepped] | None = None
        self.cycles_ms: list[float] = []
        self.garbage, self.collections_ms = GarbageCollection(), list[float]()
        self.events_us: list[float] = []

    def handle(self, events: list[c.Event]) -> None:
        coordinator = self.controller.coordinator
        before, coordinator.last_cycle_s = coordinator.last_cycle_s, -1.0
        start = time.perf_counter()
        commands = self.controller.handle_all(events, self.now)
        spent = time.perf_counter() - start
        if coordinator.last_cycle_s >= 0:
            self.cycles_ms.append(spent * 1e3)
        else:
            coordinator.last_cycle_s = before
            self.events_us.append(spent * 1e6 / len(events))
        for command in commands:
            self.carry_out(command)

    def drain(self) -> None:
        while self.answers:
            answers, self.answers = self.answers, []
            self.handle(answers)

    def carry_out(self, command: c.Command) -> None:
        match command:
            case c.Start(role=role, id=member):
                if role == "replica":
                    self.replicas[member] = Replica()
                self.answers.append(c.Up(role, member, address=role))
            case c.Route(replica=name, trajectories=refs, seq=seq):
                replica = self.replicas[name]
                replica.last_seq = seq
                for ref in refs:
                    drawn = min(LONGEST, self.numbers.lognormvariate(7.3, 0.9))
                    replica.work[ref.trajectory] = [
                        self.kept.pop(ref.trajectory, 0.0),
                        self.length.setdefault(ref.trajectory, drawn),
                    ]
            case c.Interrupt(replica=name, trajectories=names, seq=seq):
                replica = self.replicas[name]
                replica.last_seq = seq
                for trajectory in names:
                    tokens, _ = replica.work.pop(trajectory)
                    self.kept[trajectory] = tokens
                    self.answers.append(c.Interrupted(name, trajectory, int(tokens), answers=seq))
            case c.Pull(replica=name, version=version, seq=seq):
                self.replicas[name].last_seq, self.replicas[name].version = seq, version
                self.answers.append(c.Pulled(name, version))
            case c.Abort(seq=seq):
                self.answers.append(c.Discarded(seq))
            case c.Score(trajectories=names):
                self.answers += [c.Scored(name, float(self.numbers.random() < 0.5)) for name in names]
            case c.Step(version=version):
                self.stepping = (self.now + TRAIN_S, c.Stepped(version))
            case c.Publish(version=version):
                self.answers.append(c.Published(version))
            case c.Checkpoint(version=version):
                self.answers.append(c.Durable(version))
            case c.Finish() | c.Fail():
                raise RuntimeError(f"the run ended: {command}")
            case _:
                pass

    def advance(self) -> None:
        """A while of decoding, then every replica reports."""
        self.now += STEP_S
        for name, replica in self.replicas.items():
            if replica.work:
                kv = sum(PROMPT + so_far for so_far, _ in replica.work.values())
                tokens = STEP_S / MODEL.step_latency_s(min(kv, KV_TOKENS), len(replica.work))
                for trajectory, progress in list(replica.work.items()):
                    progress[0] += tokens
                    if progress[0] >= progress[1]:
                        del replica.work[trajectory]
                        replica.finished += 1
                        self.answers.append(c.Finished(name, trajectory, int(self.length.pop(trajectory))))
        self.drain()
        if self.stepping is not None and self.now >= self.stepping[0]:
            stepped, self.stepping = self.stepping[1], None
            self.handle([stepped])
            self.drain()
            start = time.perf_counter()
            self.garbage.collect()
            self.collections_ms.append((time.perf_counter() - start) * 1e3)
        self.handle([*(replica.snapshot(name) for name, replica in self.replicas.items())])


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def measure(replicas: int, trajectories: int, cycles: int, profile: bool) -> dict[str, float]:
    fleet = Fleet(controller(replicas, trajectories), seed=0)
    fleet.handle([c.Tick()])
    fleet.drain()
    fleet.cycles_ms.clear()
    cold, routed = 0, -1  # cycles until a full pool is routed over an empty fleet
    while fleet.controller.coordinator.routings > routed:
        routed = fleet.controller.coordinator.routings
        fleet.handle([*(replica.snapshot(name) for name, replica in fleet.replicas.items()), c.Tick()])
        cold += 1
    cold_ms = max(fleet.cycles_ms)
    fleet.cycles_ms.clear()
    fleet.events_us.clear()
    profiler = cProfile.Profile()
    for _ in range(cycles):
        fleet.advance()
        if profile:
            profiler.enable()
        fleet.handle([c.Tick()])
        profiler.disable()
        fleet.drain()
    if profile:
        pstats.Stats(profiler).sort_stats("cumtime").print_stats(18)
    run = fleet.controller.view
    return {
        "replicas": replicas,
        "trajectories": trajectories,
        "cold_ms": cold_ms,
        "p50_ms": percentile(fleet.cycles_ms, 0.5),
        "p99_ms": percentile(fleet.cycles_ms, 0.99),
        "max_ms": max(fleet.cycles_ms),
        "over_limit": sum(ms > LIMIT_MS for ms in fleet.cycles_ms) / len(fleet.cycles_ms),
        "event_us": sum(fleet.events_us) / max(1, len(fleet.events_us)),
        "collection_ms": max(fleet.collections_ms),
        "cycles": cycles,
        "cold_cycles": cold,
        "versions": run.version,
        "routed": fleet.controller.coordinator.routings,
        "interrupting_pulls": run.interrupting_pulls,
        "evicted": run.evictions,
        "contradictions": run.contradictions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=400)
    parser.add_argument("--only", help="one size, such as 128x8192")
    parser.add_argument("--profile", action="store_true", help="where a cycle's time goes")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    print(
        f"{'fleet':>14} {'cold':>9} {'p50':>9} {'p99':>9} {'max':>9}  over {LIMIT_MS:.0f} ms   event  garbage   what happened"
    )
    for replicas, trajectories in SIZES:
        if options.only not in (None, f"{replicas}x{trajectories}"):
            continue
        row = measure(replicas, trajectories, options.cycles, options.profile)
        rows.append(row)
        print(
            f"{replicas:>6}x{trajectories:<7} {row['cold_ms']:>6.1f} ms {row['p50_ms']:>6.1f} ms {row['p99_ms']:>6.1f} ms "
            f"{row['max_ms']:>6.1f} ms  {row['over_limit']:>8.1%} {row['event_us']:>5.1f} us  {row['collection_ms']:>4.0f} ms  "
            f"{row['versions']} versions, {row['routed']:,} routings, {row['interrupting_pulls']} interrupting pulls, "
            f"{row['evicted']} evicted"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
