"""Where turns of conversations go: home, to the least load, or where prefill and load cost least together.

    uv run python tools/bench/prefix_routing.py [--seeds N] [--simulated] [--json FILE]

A controller of a run routes a batch of conversations to two real vLLM engines on CPU, which take turns. Each has its own clock,
on which a step takes the processor seconds of the engine's worker, and environments answer on these clocks: so seconds of a
batch are those of two replicas that run at once on a core each. The arms take turns within a seed, and are compared there. What
else the machine does makes seconds longer, but tokens hardly depend on it: `prefilled` are those that the engines computed of
prompts and contexts, `cached` those that their prefix caches had.

    without   `least-loaded`, and engines without a prefix cache
    home      `least-loaded`: a turn goes on where the one before it was, whatever it meets there
    load      `prefix-aware` with a place worth more than any context: each turn goes to the least load
    weighed   `prefix-aware` as given by --place-tokens

In `contexts` prompts are long and turns short, in `crowd` it is the other way round, and a quarter of the groups, which come
first, has most of the turns, so that those of one replica go on when the others are done.

--simulated has the same arms, and more worths of a place, on a simulated fleet: 4 H800 that generate with Qwen2.5-7B and 16
that train, so that generation is the limit. `seconds` are those of a step there, `prefill_s` those of prefill in it on each
replica, `cached` the tokens of a step that need none.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import product
from pathlib import Path
from typing import Any

from psutil import Process

from tailrace import contracts as c
from tailrace.contracts.plugins import load
from tailrace.controller.controller import Controller
from tailrace.controller.spec import PipelineSpec
from tailrace.fleetsim import simulate
from tailrace.rollout import build_engine

REPLICAS = ("r0", "r1")
SAMPLES = 4
VOCABULARY = 2_048
WITHOUT, HOME, LOAD, WEIGHED = "without", "home", "load", "weighed"
EVERYWHERE = 1e9
"""Tokens that a place is worth where prefill counts for nothing."""
Figures = dict[str, dict[str, dict[str, list[float]]]]
"""Figures of each shape and arm, by name, seed by seed."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A batch of conversations.

    Args:
        groups: of them, each of `SAMPLES`.
        prompt: tokens of a prompt.
        turn: tokens of a turn, from the least to the most.
        answer: tokens of what an environment answers.
        turns: of a conversation, in most groups and in those that come first.
        long_groups: how many come first.
        latency_s: of an environment, from the least to the most.
    """

    groups: int
    prompt: int
    turn: tuple[int, int]
    answer: int
    turns: tuple[int, int]
    long_groups: int
    latency_s: tuple[float, float] = (0.02, 0.4)


SHAPES = {
    "contexts": Shape(6, 700, (6, 18), 40, (4, 4), 0),
    "crowd": Shape(8, 48, (16, 40), 8, (1, 8), 2),
}


@dataclass(slots=True)
class Conversation:
    """What the store has of a trajectory: its tokens with the prompt, and the lengths of its turns that are left."""

    tokens: list[int]
    left: list[int]
    prompt: int
    turn: int = 0

    @property
    def response(self) -> int:
        """Tokens without the prompt."""
        return len(self.tokens) - self.prompt


class Replica:
    """A real engine, whose model runs in a worker process, with a clock of its own."""

    def __init__(self, name: str, engine: Any, worker: Process) -> None:
        self.name, self.engine, self.worker = name, engine, worker
        self.begin(None)

    def begin(self, weights: Any) -> None:
        """Forget everything, the prefix cache too."""
        if weights is not None:
            self.engine.load_weights(weights)
        self.at, self.busy_s, self.generated, self.seq = 0.0, 0.0, 0, 0
        self.running: dict[str, list[int]] = {}
        self.before = self.engine.stats().cached_tokens

    def step(self) -> list[c.Delta]:
        """One step, by which its clock advances as long as its worker computed."""
        start = computed_s(self.worker)
        deltas = list(self.engine.step())
        took = computed_s(self.worker) - start
        self.at, self.busy_s = self.at + took, self.busy_s + took
        self.generated += sum(len(delta.tokens) for delta in deltas)
        return deltas

    def snapshot(self, tokens_per_s: float) -> c.Snapshot:
        """Its load."""
        stats = self.engine.stats()
        return c.Snapshot(
            self.name, stats.kv, stats.running, stats.waiting, 0, 0, self.seq, tokens_per_s,
            kv_capacity_tokens=stats.kv_capacity_tokens, cached_tokens=stats.cached_tokens - self.before,
        )  # fmt: skip


def computed_s(process: Process) -> float:
    """Processor seconds that the threads of a process have taken."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{process.pid}/task").glob("*/schedstat")) / 1e9


def build(name: str, model: str, *, cached: bool) -> Replica:
    """A replica with or without a prefix cache."""
    options = {"device": "cpu", "dtype": "float32", "threads": 1, "max_num_seqs": 64, "kv_cache_bytes": 256 << 20}
    before = set(Process().children(recursive=True))
    engine = build_engine("vllm", model, {**options, "apart": True, "prefix_cache": cached})
    (worker,) = [one for one in set(Process().children(recursive=True)) - before if "Worker" in " ".join(one.cmdline())]
    return Replica(name, engine, worker)


@dataclass(slots=True)
class Batch:
    """One batch, from the first route to its last token.

    Args:
        shape: its conversations.
        routing: the policy.
        replicas: with empty prefix caches.
        seed: of lengths, tokens and latencies.
    """

    shape: Shape
    routing: Any
    replicas: Mapping[str, Replica]
    seed: int
    now: float = 0.0
    prefilled: int = 0
    moved: int = 0
    store: dict[str, Conversation] = field(default_factory=dict)
    due: list[tuple[float, int, c.Event]] = field(default_factory=list)
    came: int = 0
    homes: dict[str, str] = field(default_factory=dict)

    def run(self) -> dict[str, float]:
        """Generate it. Returns its figures."""
        shape = self.shape
        spec = PipelineSpec(
            admission=load("tailrace.admission", "inherent")(),
            batching=load("tailrace.batching", "plain")(samples=SAMPLES),
            routing=self.routing,
            sync=load("tailrace.sync", "on-idle")(),
            relocation=load("tailrace.relocation", "none")(),
            training=load("tailrace.training", "full-batch")(),
            provisioning=load("tailrace.provisioning", "static")(count=len(REPLICAS)),
            recovery=load("tailrace.recovery", "isolate")(),
            sampler=load("tailrace.sampler", "fifo")(),
            steps=1,
            batch_groups=shape.groups,
            replica_batch=shape.groups * SAMPLES,
            buffer_groups=shape.groups,
            environments=1,
        )
        controller = Controller(spec)
        events: list[c.Event] = [c.Tick()]
        ended = 0.0
        while not controller.view.finished:
            if not events:
                self._advance()
                self.now = max(self.now, self.due[0][0])
                events = [heappop(self.due)[2]]
            if any(isinstance(event, c.Finished) for event in events):
                ended = self.now
            commands = controller.handle_all(events, self.now)
            if controller.view.failure:
                raise SystemExit(f"the controller gave up: {controller.view.failure}")
            events = [event for command in commands for event in self._answers(command)]
        cached = sum(one.engine.stats().cached_tokens - one.before for one in self.replicas.values())
        busy = [one.busy_s for one in self.replicas.values()]
        return {
            "seconds": ended, "prefilled": self.prefilled - cached, "cached": cached, "moved": self.moved,
            "busy_share": sum(busy) / len(busy) / ended,
        }  # fmt: skip

    def _advance(self) -> None:
        """Step engines until nothing that they do can come before what is due first."""
        while True:
            running = [one for one in self.replicas.values() if one.running]
            if not running:
                break
            one = min(running, key=lambda replica: replica.at)
            if self.due and self.due[0][0] <= one.at:
                break
            began = one.at
            self._took(one, one.step(), began)
        if not self.due:
            raise SystemExit("nothing runs and nothing is due: the controller forgot a trajectory")

    def _took(self, one: Replica, deltas: Sequence[c.Delta], began: float) -> None:
        for delta in deltas:
            one.running[delta.id] += delta.tokens
        ended = [delta.id for delta in deltas if delta.finish is not None]
        for name in ended:
            conversation = self.store[name]
            conversation.tokens += one.running.pop(name)
            conversation.turn += 1
            kind = c.TurnEnded if conversation.left else c.Finished
            self._later(one.at, kind(one.name, name, conversation.response))
        if ended:
            rate = sum(len(delta.tokens) for delta in deltas) / max(1e-9, one.at - began)
            self._later(one.at, one.snapshot(rate))

    def _later(self, at: float, event: c.Event) -> None:
        self.came += 1
        heappush(self.due, (at, self.came, event))

    def _answers(self, command: c.Command) -> Iterator[c.Event]:
        seq = command.seq
        match command:
            case c.Start(role=role, id=id_):
                yield c.Up(role, id_, None, "", f"{role}-{id_}" if role == "relay" else "", answers=seq)
            case c.Publish(version=version):
                yield c.Published(version, seq)
            case c.Checkpoint(version=version, full=full):
                yield c.Durable(version, seq, full=full)
            case c.Pull(replica=name, version=version):
                self.replicas[name].seq = seq
                yield c.Pulled(name, version, seq)
            case c.Measure(prompts=prompts):
                yield c.Measured(prompts, (self.shape.prompt,) * len(prompts), seq)
            case c.Route(replica=name, trajectories=refs):
                one = self.replicas[name]
                one.at, one.seq = max(one.at, self.now), seq
                for ref in refs:
                    self._begins(one, ref)
                yield one.snapshot(0.0)
            case c.Call(trajectories=names):
                for name in names:
                    self._asks(name, seq)
            case c.Score(trajectories=names):
                yield from (c.Scored(name, float(name.endswith("0")), seq) for name in names)
            case c.Accumulate(version=version, trajectories=names, cell=cell):
                yield c.Accumulated(version, names, answers=seq, cell=cell)
            case c.Step(version=version):
                yield c.Stepped(version, answers=seq)
            case c.Abort():
                yield c.Discarded(seq)

    def _begins(self, one: Replica, ref: c.TrajectoryRef) -> None:
        name, shape = ref.trajectory, self.shape
        if name not in self.store:
            drawn = random.Random(f"{self.seed} {name}")
            turns = shape.turns[ref.prompt < shape.long_groups]
            prompt = random.Random(f"{self.seed} prompt {ref.prompt}").choices(range(VOCABULARY), k=shape.prompt)
            self.store[name] = Conversation(prompt, [drawn.randint(*shape.turn) for _ in range(turns)], shape.prompt)
        self.moved += self.homes.setdefault(name, one.name) != one.name
        self.homes[name] = one.name
        conversation = self.store[name]
        self.prefilled += len(conversation.tokens)
        one.running[name] = []
        sampling = c.Sampling(max_tokens=conversation.left.pop(0))
        one.engine.submit([c.Request(name, tuple(conversation.tokens), sampling)])

    def _asks(self, name: str, seq: int) -> None:
        conversation, drawn = self.store[name], random.Random(f"{self.seed} {name} {self.store[name].turn}")
        latency_s = drawn.uniform(*self.shape.latency_s)
        conversation.tokens += drawn.choices(range(VOCABULARY), k=self.shape.answer)
        self._later(self.now + latency_s, c.Turned(name, conversation.turn, conversation.response, answers=seq))


def save_model(path: Path) -> Any:
    """A random Qwen3 of 7 M parameters, which never ends a response."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=2_048, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).eval()
    model.save_pretrained(path)
    return model


def real(seeds: int, place_tokens: float) -> Figures:
    """Figures of each shape and arm."""
    found: Figures = {}
    arms = {
        WITHOUT: load("tailrace.routing", "least-loaded")(),
        HOME: load("tailrace.routing", "least-loaded")(),
        LOAD: load("tailrace.routing", "prefix-aware")(place_tokens=EVERYWHERE),
        WEIGHED: load("tailrace.routing", "prefix-aware")(place_tokens=place_tokens),
    }
    with tempfile.TemporaryDirectory() as folder:
        model = save_model(Path(folder) / "model")
        pairs = {
            cached: {name: build(name, f"{folder}/model", cached=cached) for name in REPLICAS}
            for cached in (True, False)
        }
        try:
            for (shape, conversations), seed in product(SHAPES.items(), range(-1, seeds)):
                for arm in random.Random(seed).sample(list(arms), len(arms)):
                    replicas = pairs[arm != WITHOUT]
                    for replica in replicas.values():
                        replica.begin(model.named_parameters())
                    figures = Batch(conversations, arms[arm], replicas, seed).run()
                    if seed >= 0:  # the one before warms up
                        _note(found, shape, arm, figures)
        finally:
            for replica in (*pairs[True].values(), *pairs[False].values()):
                replica.engine.close()
    return found


WORTHS = (64.0, 512.0, 4_096.0)
SCHEDULES: dict[str, dict[str, str]] = {
    "synchronous": {"admission": "on-policy", "sync": "barrier", "relocation": "none"},
    "laminar": {},
    "laminar without repack": {"relocation": "none"},
}


def fleet(routing: object, turns: str, schedule: str, cached: float) -> dict[str, Any]:
    """A pipeline whose conversations have long contexts and short turns, or the other way round."""
    long = turns == "contexts"
    return {
        "app": "laminar",
        "pipeline": {
            "steps": 8, "prompts_per_step": 64, "samples_per_prompt": 8, "prompts_per_replica": 16, "routing": routing,
            **SCHEDULES[schedule],
        },
        "rollout": {"max_tokens": 16_384},
        "fleet": {
            "model": "Qwen2.5-7B", "warm_up": 2,
            "trainer": {"gpus": 16},
            "rollout": {"gpus": 4, "prefix_cached": cached},
            "workload": {
                "prompt": {"median": 6_000 if long else 300, "sigma": 0.4, "cap": 12_000},
                "response": {"median": 800 if long else 4_000, "sigma": 0.6 if long else 1.0},
                "environment": {
                    "calls": {"preset": "tool-calling", "max": 8}, "latency": {"median": 3.0, "sigma": 1.0, "cap": 60.0},
                },
            },
        },
    }  # fmt: skip


def simulated(seeds: int) -> Figures:
    """The same of a simulated fleet, by schedule."""
    arms: dict[str, tuple[object, float]] = {
        WITHOUT: ("least-loaded", 0.0),
        HOME: ("least-loaded", 0.95),
        LOAD: ({"name": "prefix-aware", "place_tokens": EVERYWHERE}, 0.95),
    }
    arms |= {f"{worth:,.0f}": ({"name": "prefix-aware", "place_tokens": worth}, 0.95) for worth in WORTHS}
    found: Figures = {}
    for schedule, shape, (arm, (routing, share)) in product(SCHEDULES, SHAPES, arms.items()):
        for seed in range(seeds):
            result = simulate(fleet(routing, shape, schedule, share), seed=seed)
            cached = {event.replica: event.cached_tokens for _, event in result.events if isinstance(event, c.Snapshot)}
            figures = {
                "seconds": result.step_s,
                "prefill_s": result.prefill_share * result.utilisation["replica"] * result.step_s,
                "cached": sum(cached.values()) / len(result.batches),
            }
            _note(found, f"{schedule}, {shape}", arm, figures)
    return found


def _note(found: Figures, shape: str, arm: str, figures: Mapping[str, float]) -> None:
    for name, figure in figures.items():
        found.setdefault(shape, {}).setdefault(arm, {}).setdefault(name, []).append(figure)
    print(shape, arm, {name: round(figure, 3) for name, figure in figures.items()}, file=sys.stderr, flush=True)


def over_home(found: Figures, what: str) -> Iterator[str]:
    """Lines with each arm's figure over that of `home` in the same seed: its median, the smallest and the largest."""
    for shape, arms in found.items():
        for arm, figures in arms.items():
            ratios = [mine / base for mine, base in zip(figures[what], arms[HOME][what], strict=True)]
            others = ", ".join(f"{name} {statistics.median(each):,.2f}" for name, each in figures.items())
            yield (
                f"{shape:9} {arm:8} {what} {statistics.median(ratios):.2f} of home's ({min(ratios):.2f} to "
                f"{max(ratios):.2f}); medians: {others}"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--place-tokens", type=float, default=64.0)
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = simulated(given.seeds) if given.simulated else real(given.seeds, given.place_tokens)
    for line in over_home(found, "seconds"):
        print(line)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(main())
