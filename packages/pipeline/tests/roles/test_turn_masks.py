"""Turns through replicas that die, a store that dies, moves and newer weights: what the trainer masks, token by token."""

import dataclasses
import random
import threading
import time

import pytest

from tailrace.contracts import (
    Finished,
    FinishReason,
    Interrupt,
    Interrupted,
    Pull,
    Route,
    Sampling,
    TrajectoryRef,
    TurnEnded,
)
from tailrace.rollout import ReplicaWorker
from tailrace.rollout.testing import FakeEngine, MemoryWeights, fake_token
from tailrace.trainer import TrainerConfig
from tailrace.trainer.batch import grpo_samples
from tailrace.trajstore import Assignment, TrajectoryStore

LENGTH, STOPS, DEADLINE_S = 48, tuple(range(8)), 30.0  # of 50 tokens
SAMPLING = Sampling(max_tokens=LENGTH, stop_token_ids=STOPS, turns=True)
WEIGHTS = MemoryWeights({version: {"w": 100 + version} for version in range(4)})


class Source:
    """A store as the source of one life of a replica. The store may be closed and opened again at any time."""

    def __init__(self, world, owner):
        self._world, self._owner = world, owner

    def begin(self, replica, version, refs, seq):
        items = [Assignment(ref.trajectory, 0, self._world.prompts[ref.trajectory]) for ref in refs]
        with self._world.lock:
            return self._world.store.begin(self._owner, version, items)

    def append(self, replica, deltas):
        with self._world.lock:
            return self._world.store.append(self._owner, deltas)


class World:
    """Two replicas, a store, and an environment that notes what it answered."""

    def __init__(self, path, seed, mixed):
        self.draw = random.Random(seed)
        self.path, self.mixed, self.lock = path, mixed, threading.Lock()
        self.store = TrajectoryStore(path, mixed_versions=mixed, synchronous="off")
        self.prompts = {f"t{number}": (number, 3) for number in range(3)}
        self.told = {name: {} for name in self.prompts}  # by the turn's serial
        self.lives, self.workers, self.versions = [0, 0], [None, None], [0, 0]
        self.seq = self.kills = self.reopened = 0
        self.home = dict.fromkeys(self.prompts)
        self.start(0)
        self.start(1)

    def start(self, place):
        self.lives[place] += 1
        source = Source(self, f"r{place}#{self.lives[place]}")
        engine = FakeEngine(max_num_seqs=2, max_model_len=200)
        worker = ReplicaWorker(
            f"r{place}", engine, source, WEIGHTS, sampling=lambda ref: SAMPLING, flush_s=0.0, snapshot_s=10
        )
        self.workers[place] = worker
        self.pull(place, self.versions[place])

    def pull(self, place, version):
        self.seq += 1
        self.versions[place] = version
        self.workers[place].submit(Pull(self.seq, f"r{place}", version))

    def kill(self, place):
        """The replica is gone with what it has not flushed. Its late deltas are refused: another begins its trajectories."""
        self.kills += 1
        old = self.workers[place]
        for name, home in self.home.items():
            if home == place:
                self.home[name] = None
        self.start(place)
        old.close(DEADLINE_S)

    def route(self, name):
        place = self.draw.randrange(2)
        self.seq += 1
        self.home[name] = place
        self.workers[place].submit(Route(self.seq, f"r{place}", (TrajectoryRef(name, 0, 0),)))

    def answer(self, name):
        (talk,) = self.store.conversations([name])
        turn = talk.turns[-1]
        if turn.observation is not None:
            return
        room = LENGTH - turn.start - len(turn.response)
        done = self.draw.random() < 0.1
        count = self.draw.randint(0 if done else 1, max(1, min(7, room)))
        tokens = tuple(self.draw.randrange(100, 110) if self.draw.random() < 0.7 else STOPS[0] for _ in range(count))
        fresh = self.draw.random() < 0.3
        self.told[name][turn.serial] = (turn.start + len(turn.response), tokens, fresh)
        self.store.observe(name, turn.serial, tokens, done=done, reward=1.0, fresh=fresh)
        assert self.store.observe(name, turn.serial, (1, 2, 3)).observation == tokens  # told again by another member

    def reopen(self):
        """The data role dies between two calls. Replicas that live keep what they own."""
        self.reopened += 1
        with self.lock:
            self.store.close()
            self.store = TrajectoryStore(self.path, mixed_versions=self.mixed, synchronous="off")

    def finished(self):
        return [name for name, status in self.store.statuses(list(self.prompts)).items() if status == "complete"]

    def settle(self):
        for place, worker in enumerate(self.workers):
            for event in worker.events(0.0):
                if isinstance(event, TurnEnded | Interrupted | Finished) and self.home[event.trajectory] == place:
                    self.home[event.trajectory] = None

    def close(self):
        for worker in self.workers:
            worker.close(DEADLINE_S)
        self.store.close()


@pytest.mark.parametrize("mixed", [False, True])
def test_what_is_trained_on_is_what_a_model_of_its_version_drew(tmp_path, mixed):
    kills = reopened = turns = of_several_versions = of_several_contexts = 0
    for seed in range(10):
        world = World(tmp_path / f"{seed}.db", seed, mixed)
        try:
            live(world, seed)
            of_several_contexts += check(world, seed)
            experiences = world.store.experiences(sorted(world.prompts))
        finally:
            world.close()
        kills, reopened = kills + world.kills, reopened + world.reopened
        turns += sum(experience.turns for experience in experiences)
        of_several_versions += sum(experience.oldest_version < experience.newest_version for experience in experiences)
    assert min(kills, reopened) >= 3
    assert turns >= 50
    assert of_several_contexts >= 5
    assert (of_several_versions > 4) == mixed


def live(world, seed):
    """Let all trajectories come to their ends, whatever comes between."""
    draw, deadline = world.draw, time.monotonic() + DEADLINE_S
    while len(world.finished()) < len(world.prompts):
        assert time.monotonic() < deadline, f"seed {seed}: {world.home} {world.store.partials()}"
        world.settle()
        idle = [name for name in world.prompts if world.home[name] is None and name not in world.finished()]
        action, place = draw.random(), draw.randrange(2)
        if action < 0.05:
            world.kill(place)
        elif action < 0.08:
            world.pull(place, min(3, world.versions[place] + 1))
        elif action < 0.12:
            world.reopen()
        elif action < 0.17:
            world.seq += 1
            world.workers[place].submit(Interrupt(world.seq, f"r{place}", tuple(world.prompts)))
        elif idle:
            name = draw.choice(idle)
            waits = {one.trajectory for one in world.store.partials() if one.turn_ended}
            if name in waits and draw.random() < 0.8:
                world.answer(name)
            else:
                world.route(name)
        time.sleep(0.001)


def check(world, seed):
    of_several_contexts = 0
    experiences = world.store.experiences(sorted(world.prompts))
    assert world.store.audit()["inconsistent"] == []
    for experience in experiences:
        name = experience.trajectory
        (talk,) = world.store.conversations([name])
        serials = {turn.serial for turn in talk.turns}
        spans = {start: rest for serial, (start, *rest) in world.told[name].items() if serial in serials}
        position, told, contexts = 0, [], [(0, 0, experience.prompt)]
        versions = [segment.version for segment in experience.segments for _ in segment.tokens]
        while position < len(experience.tokens):
            tokens, fresh = spans.get(position, ((), False))
            if tokens:
                if fresh:
                    contexts.append((position, position + len(tokens), tokens))
                assert experience.tokens[position : position + len(tokens)] == tokens, (seed, name, position)
                told += [True] * len(tokens)
                position += len(tokens)
                continue
            start, _, first = contexts[-1]  # an engine gets the first token of a context as its prompt
            drawn = fake_token(100 + versions[position], first[:1] if start else first, position - start - bool(start))
            assert (experience.tokens[position], experience.logprobs[position]) == drawn, (seed, name, position)
            told.append(False)
            position += 1
        assert list(experience.generated) == [not flag for flag in told], (seed, name)
        for at, flag in enumerate(told):
            assert not flag or (experience.logprobs[at], versions[at]) == (0.0, versions[at - 1]), (seed, name, at)
        of_versions = {version for version, flag in zip(versions, told, strict=True) if not flag}
        assert world.mixed or len(of_versions) == 1, (seed, name)
        assert (experience.oldest_version, experience.newest_version) == (min(of_versions), max(of_versions))
        ended = experience.finish is FinishReason.LENGTH
        assert ended or talk.turns[-1].done, (seed, name)
        right, wrong = (dataclasses.replace(experience, reward=reward) for reward in (1.0, 0.0))
        (samples,) = grpo_samples([[right, wrong]], TrainerConfig())
        starts = [start for start, *_ in contexts[1:]]
        bounds = zip(contexts, [*starts, len(told)], strict=True)
        drawn_in = [(own, [at for at in range(own[1], end) if not told[at]]) for own, end in bounds]
        drawn_in = [(own, places) for own, places in drawn_in if places]
        for sample, ((_, begun, first), places) in zip(samples, 2 * drawn_in, strict=True):
            part = slice(begun, max(places) + 1)
            assert (sample.prompt, sample.response) == (first, experience.tokens[part])
            assert [begun + at for at in sample.trained] == places
            assert sample.behaviour == experience.logprobs[part]
        of_several_contexts += len(drawn_in) > 1
    return of_several_contexts
