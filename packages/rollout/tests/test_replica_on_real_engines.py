"""A replica on real engines: interrupted, given new weights and resumed, every token's log-probability is its version's."""

import copy
import importlib.util
import random
import threading
import time
from contextlib import ExitStack, contextmanager

import pytest

pytest.importorskip("transformers")

from tailrace.contracts import (
    Activity,
    Finished,
    FinishReason,
    Interrupt,
    Interrupted,
    Pull,
    Pulled,
    Route,
    Sampling,
    TrajectoryRef,
    TurnEnded,
)
from tailrace.rollout import ReplicaWorker, build_engine
from tailrace.rollout.testing import MemorySource, save_tiny_model
from tailrace.rollout.testing.contract import VOCABULARY, greedy, log_probabilities

COUNT, LENGTH, DEADLINE_S, SEED = 8, 120, 120.0, 5


class ModelWeights:
    """The parameters of plain transformers models, by version."""

    def __init__(self, models):
        self.models = models

    @contextmanager
    def load(self, version, timeout_s):
        yield self.models[version].named_parameters()


class InterruptingSource(MemorySource):
    """Calls back once, with the first batch after which three trajectories have five tokens."""

    then = None

    def append(self, replica, deltas):
        rejected = super().append(replica, deltas)
        if self.then is not None and sum(len(kept.tokens) >= 5 for kept in self.kept.values()) >= 3:
            self.then, then = None, self.then
            then()
        return rejected


def collect_until(worker, seen, done):
    deadline = time.monotonic() + DEADLINE_S
    while not done():
        seen += worker.events(0.5)
        assert time.monotonic() < deadline, f"saw {seen[-5:]}, seed {SEED}"


@pytest.mark.parametrize("name", ["transformers", pytest.param("vllm", marks=pytest.mark.deep)])
@pytest.mark.deep
def test_every_token_belongs_to_the_version_that_it_is_kept_with(name, tmp_path):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    models = {version: save_tiny_model(tmp_path / str(version), seed=version, layers=2) for version in (1, 2)}
    options = {"device": "cpu", "max_num_seqs": 6, "threads": 1, "dtype": "float32"}
    engine = build_engine(name, tmp_path / "1", options)
    draw = random.Random(SEED)
    source = InterruptingSource(
        {str(i): tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 20))) for i in range(COUNT)}
    )
    refs = tuple(TrajectoryRef(t, int(t), 0, mode="greedy" if int(t) % 2 else "") for t in source.kept)
    worker = ReplicaWorker(
        "r0",
        engine,
        source,
        ModelWeights(models),
        sampling=lambda ref: Sampling(temperature=0.0 if ref.mode == "greedy" else 1.0, max_tokens=LENGTH),
        flush_s=0.01,
    )
    seen = []
    try:
        source.then = lambda: (worker.submit(Interrupt(3, "r0", ("0", "1"))), worker.submit(Pull(4, "r0", 2)))
        worker.submit(Pull(1, "r0", 1))
        worker.submit(Route(2, "r0", refs))
        collect_until(worker, seen, lambda: Pulled("r0", 2, answers=4) in seen)
        rest = [event.trajectory for event in seen if isinstance(event, Interrupted)]
        assert len(rest) >= COUNT // 2, "the interruption came too late to show anything"
        worker.submit(Route(5, "r0", tuple(ref for ref in refs if ref.trajectory in rest)))
        collect_until(worker, seen, lambda: sum(isinstance(event, Finished) for event in seen) == COUNT)
    finally:
        worker.close(DEADLINE_S)
    both = 0
    for ref in refs:
        kept = source.kept[ref.trajectory]
        assert (len(kept.tokens), kept.finish) == (LENGTH, FinishReason.LENGTH)
        both += len(set(kept.versions)) == 2
        expected = {v: log_probabilities(models[v], kept.prompt, tuple(kept.tokens), 1.0) for v in models}
        assert kept.logprobs == pytest.approx(
            [expected[version][position] for position, version in enumerate(kept.versions)], abs=1e-4
        )
        if ref.mode == "greedy" and ref.trajectory in rest:
            first = kept.versions.count(1)
            assert tuple(kept.tokens[:first]) == greedy(models[1], kept.prompt, first)
            assert tuple(kept.tokens[first:]) == greedy(models[2], (*kept.prompt, *kept.tokens[:first]), LENGTH - first)
    assert both >= 2, f"no trajectory has tokens of both versions, seed {SEED}"


@pytest.mark.parametrize("name", ["transformers", pytest.param("vllm", marks=pytest.mark.deep)])
@pytest.mark.deep
def test_turns_go_on_behind_their_answers_across_interruption_and_versions(name, tmp_path):
    """Token by token, what a plain model of its version says of it, given all turns and answers before."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    models = {version: save_tiny_model(tmp_path / str(version), seed=version, layers=2) for version in (1, 2)}
    draw = random.Random(SEED)
    stops = tuple(draw.sample(range(VOCABULARY), VOCABULARY // 8))
    source = MemorySource({str(i): tuple(draw.randrange(VOCABULARY) for _ in range(4 + i)) for i in range(6)})
    options = {"device": "cpu", "max_num_seqs": 4, "threads": 1, "dtype": "float32"}
    sampling = Sampling(max_tokens=LENGTH, stop_token_ids=stops, turns=True)
    worker = ReplicaWorker(
        "r0",
        build_engine(name, tmp_path / "1", options),
        source,
        ModelWeights(models),
        sampling=lambda ref: sampling,
        flush_s=0.01,
    )
    seen, seq, ended = [], 2, 0
    try:
        worker.submit(Pull(1, "r0", 1))
        worker.submit(Route(2, "r0", tuple(TrajectoryRef(t, int(t), 0) for t in source.kept)))
        deadline = time.monotonic() + DEADLINE_S
        while any(kept.finish is None for kept in source.kept.values()):
            for event in worker.events(0.5):
                seen.append(event)
                if isinstance(event, TurnEnded):
                    ended += 1
                    source.observe(event.trajectory, [draw.choice([*stops, 1, 2]) for _ in range(draw.randint(1, 9))])
                if isinstance(event, TurnEnded | Interrupted):
                    seq += 1
                    worker.submit(Route(seq, "r0", (TrajectoryRef(event.trajectory, int(event.trajectory), 0),)))
                if isinstance(event, TurnEnded) and ended == 8:
                    seq += 1
                    worker.submit(Pull(seq, "r0", 2))
            assert time.monotonic() < deadline, f"saw {seen[-5:]}, seed {SEED}"
    finally:
        worker.close(DEADLINE_S)
    both = 0
    for kept in source.kept.values():
        expected = {v: log_probabilities(models[v], kept.prompt, tuple(kept.tokens), 1.0) for v in models}
        generated = [position for position in range(len(kept.tokens)) if position not in kept.observed]
        assert [kept.logprobs[position] for position in generated] == pytest.approx(
            [expected[kept.versions[position]][position] for position in generated], abs=1e-4
        )
        assert all(kept.logprobs[position] == 0.0 for position in kept.observed)
        both += bool(kept.observed) and len(set(kept.versions)) == 2
    assert both >= 2, f"too few trajectories have answers and both versions, seed {SEED}"


@pytest.mark.parametrize("name", ["transformers", pytest.param("vllm", marks=pytest.mark.deep)])
@pytest.mark.deep
def test_an_engine_that_stands_still_is_told_of_and_what_it_had_made_goes_on_elsewhere(name, tmp_path):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    length = 300
    model = save_tiny_model(tmp_path / "1", seed=1, layers=2)
    source = InterruptingSource({str(i): (i + 1, 5) for i in range(3)})
    refs = tuple(TrajectoryRef(trajectory, int(trajectory), 0) for trajectory in source.kept)

    def build(name, source):
        engine = build_engine(name, tmp_path / "1", {"device": "cpu", "threads": 1, "dtype": "float32"})
        worker = ReplicaWorker(
            "r0",
            engine,
            source,
            ModelWeights({1: model}),
            sampling=lambda ref: Sampling(temperature=0, max_tokens=length),
            flush_s=0.01,
            still_report_s=0.5,
        )
        worker.submit(Pull(1, "r0", 1))
        return engine, worker

    def still(seen):
        """What was told since the engine last moved."""
        told = [event for event in seen if isinstance(event, Activity)]
        moved = max((index + 1 for index, event in enumerate(told) if event.still_s == 0), default=0)
        return told[moved:]

    seen = []
    _, worker = build(name, source)
    try:
        source.then = worker.stall
        worker.submit(Route(2, "r0", refs))
        collect_until(worker, seen, lambda: source.then is None and len(still(seen)) >= 2)
        first, second = still(seen)[-2:]
        assert (first.phase, first.progress) == ("generating", second.progress)
        assert 0.5 <= first.still_s < second.still_s
        assert 1 <= first.progress < length
        assert worker.alive()
        saved = InterruptingSource({})  # what there is when somebody kills the process now
        saved.kept = copy.deepcopy(source.kept)
    finally:
        worker.close(DEADLINE_S)
    assert all(5 <= len(kept.tokens) < length for kept in saved.kept.values())
    # The thread of transformers stands still now, in the middle, while the worker's steps return without tokens.
    seen, paused = [], threading.Event()
    engine, worker = build("transformers", saved)
    with ExitStack() as pause:
        try:
            saved.then = lambda: (pause.enter_context(engine._managers.all()[0].pause()), paused.set())
            worker.submit(Route(2, "r0", refs))
            collect_until(worker, seen, lambda: paused.is_set() and still(seen))
            pause.close()
            collect_until(worker, seen, lambda: not still(seen))
            collect_until(worker, seen, lambda: sum(isinstance(event, Finished) for event in seen) == len(refs))
        finally:
            pause.close()
            worker.close(DEADLINE_S)
    for kept in saved.kept.values():
        assert tuple(kept.tokens) == greedy(model, kept.prompt, length)
