"""The replica worker on the fake engine: commands in any order, tokens in step, nothing lost, nothing silent."""

import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import (
    Abort,
    Finished,
    FinishReason,
    Interrupt,
    Interrupted,
    Pull,
    Pulled,
    PullFailed,
    Snapshot,
)
from tailrace.rollout.testing import FakeEngine, MemorySource, MemoryWeights, fake_token

from .replica_harness import DEADLINE_S, LENGTH, STOP, Harness, Slow, prompts, route


def expected_response(prompt, versions):
    """What a response must be whose tokens came from these versions (by position)."""
    pairs = [fake_token(100 + version, prompt, position) for position, version in enumerate(versions)]
    return [token for token, _ in pairs], [logprob for _, logprob in pairs]


def assert_consistent(source):
    for trajectory, kept in source.kept.items():
        tokens, logprobs = expected_response(kept.prompt, kept.versions)
        assert (kept.tokens, kept.logprobs) == (tokens, logprobs), trajectory
        assert all(token != STOP for token in kept.tokens[:-1]), "went on behind a stop token"
        ended = len(kept.tokens) == LENGTH or kept.tokens[-1:] == [STOP]
        assert (kept.finish is not None) <= ended


def test_a_routed_trajectory_is_kept_and_then_reported():
    with Harness(MemorySource(prompts(6))) as h:
        h.pull(1)
        h.worker.submit(route(2, *prompts(6)))
        h.until("all to finish", lambda: len(h.of(Finished)) == 6)
        assert_consistent(h.source)
        for event in h.of(Finished):
            kept = h.source.kept[event.trajectory]
            assert (event.tokens, event.reason, event.answers) == (len(kept.tokens), kept.finish, 2)
        h.until("a snapshot", lambda: isinstance(h.seen[-1], Snapshot) and h.seen[-1].finished == 6)
        last = h.seen[-1]
        assert (last.running, last.waiting, last.kv, last.version, last.last_seq) == (0, 0, 0, 1, 2)


def test_an_event_never_leaves_before_its_tokens_are_kept():
    gate = threading.Event()

    class SlowSource(MemorySource):
        def append(self, replica, deltas):
            assert gate.wait(DEADLINE_S)
            return super().append(replica, deltas)

    with Harness(SlowSource(prompts(2))) as h:
        h.pull(0)
        h.worker.submit(route(2, "0", "1"))
        for _ in range(10):
            h.collect(0.02)
        assert not h.of(Finished)
        gate.set()
        h.until("both to finish", lambda: len(h.of(Finished)) == 2)


def test_a_complete_trajectory_is_reported_without_the_engine():
    source = MemorySource(prompts(1))
    tokens, logprobs = expected_response(source.kept["0"].prompt, [0] * LENGTH)
    source.kept["0"].tokens, source.kept["0"].logprobs, source.kept["0"].versions = tokens, logprobs, [0] * LENGTH
    source.kept["0"].finish = FinishReason.LENGTH
    with Harness(source) as h:
        h.pull(3)
        h.worker.submit(route(2, "0"))
        h.until("it to finish", lambda: h.of(Finished))
        assert h.of(Finished) == [Finished("r0", "0", LENGTH, FinishReason.LENGTH, answers=2)]


def test_a_complete_trajectory_that_ended_at_the_models_context_has_not_stopped():
    """Its replica died before it could say so, and nothing but its tokens tells the next one."""
    source = MemorySource(prompts(2))
    for kept in source.kept.values():
        kept.tokens, kept.logprobs, kept.versions, kept.finish = [1, 2], [-0.5, -0.5], [0, 0], FinishReason.LENGTH
    source.kept["1"].tokens, source.kept["1"].logprobs, source.kept["1"].versions = [], [], []  # its prompt filled it
    with Harness(source) as h:
        h.pull(0)
        h.worker.submit(route(2, "0", "1"))
        h.until("both to finish", lambda: len(h.of(Finished)) == 2)
        assert [event.reason for event in h.of(Finished)] == [FinishReason.LENGTH] * 2


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 6), batch=st.integers(1, 4), ahead=st.integers(0, 3))
def test_any_interleaving_of_commands_loses_nothing(seed, count, batch, ahead):
    # What may be routed depends on how far the worker is, so commands are drawn as it runs and not by hypothesis.
    draw = random.Random(seed)
    source = MemorySource(prompts(count))
    engine = Slow(max_num_seqs=batch, unseen=ahead)
    with Harness(source, engine=engine) as h:
        seq, version = 1, 0
        h.pull(0)
        here, dropped = set(), set()

        def settle():
            for event in h.collect(0):
                if isinstance(event, Finished | Interrupted):
                    here.discard(event.trajectory)
                    kept = source.kept[event.trajectory]
                    if isinstance(event, Finished):
                        assert (event.tokens, event.reason) == (len(kept.tokens), kept.finish)
                    else:
                        assert event.tokens_kept == len(kept.tokens)

        for _ in range(draw.randint(1, 12)):
            settle()
            seq += 1
            action = draw.choice(["route", "interrupt", "pull", "abort", "wait"])
            idle = [t for t in source.kept if t not in here | dropped and source.kept[t].finish is None]
            if action == "route" and idle:
                chosen = draw.sample(idle, draw.randint(1, len(idle)))
                here.update(chosen)
                h.worker.submit(route(seq, *chosen))
            elif action == "interrupt":
                h.worker.submit(Interrupt(seq, "r0", tuple(draw.sample(sorted(source.kept), draw.randint(0, count)))))
            elif action == "pull":
                version = draw.randint(version, 5)
                h.worker.submit(Pull(seq, "r0", version))
            elif action == "abort" and here:
                gone = draw.choice(sorted(here))
                h.worker.submit(Abort(seq, (gone,)))
                here.discard(gone)
                dropped.add(gone)
            else:
                time.sleep(draw.choice([0, 0.002, 0.01]))
        deadline = time.monotonic() + DEADLINE_S
        while here:
            settle()
            assert time.monotonic() < deadline, f"unanswered: {here}"
        # whatever was left is finished now, from where it stood
        rest = [t for t in source.kept if t not in dropped and source.kept[t].finish is None]
        h.worker.submit(route(seq + 1, *rest))
        h.until("the rest", lambda: {e.trajectory for e in h.of(Finished)} >= set(source.kept) - dropped)
        assert_consistent(source)
        finished = [event.trajectory for event in h.of(Finished)]
        assert len(finished) == len(set(finished)), "finished twice"
        for kept in source.kept.values():
            assert kept.versions == sorted(kept.versions)


def test_an_abort_that_comes_late_leaves_what_was_routed_after_it():
    source = MemorySource(prompts(3))
    with Harness(source, engine=Slow(unseen=2)) as h:
        h.pull(1)
        h.worker.submit(route(5, "0", "1"))
        h.worker.submit(Abort(4, ("0", "2")))  # on its way since before the route
        h.worker.submit(Abort(6, ("1",)))
        h.until("the one that stays", lambda: [event.trajectory for event in h.of(Finished)] == ["0"])
        h.worker.submit(route(7, "2"))
        h.until("what was aborted before it came", lambda: len(h.of(Finished)) == 2)
    assert {event.trajectory for event in h.of(Finished)} == {"0", "2"}


def test_interrupt_answers_each_once_and_resuming_elsewhere_continues():
    source = MemorySource(prompts(3))
    with Harness(source, engine=Slow(unseen=2)) as h:
        h.pull(1)
        h.worker.submit(route(2, "0", "1", "2"))
        h.worker.submit(Interrupt(3, "r0", ("0", "2", "unknown")))
        h.until("the answers", lambda: {e.trajectory for e in [*h.of(Interrupted), *h.of(Finished)]} == {"0", "1", "2"})
        for event in h.of(Interrupted):
            assert event.answers == 3
            assert event.tokens_kept == len(source.kept[event.trajectory].tokens)
        h.pull(4, seq=4)
        rest = [event.trajectory for event in h.of(Interrupted)]
        h.worker.submit(route(5, *rest))
        h.until("the rest", lambda: len(h.of(Finished)) == 3)
    assert_consistent(source)


def test_a_pull_interrupts_what_is_in_flight_first():
    source = MemorySource(prompts(2))
    with Harness(source, engine=Slow()) as h:
        h.pull(1)
        h.worker.submit(route(2, "0", "1"))
        h.pull(2, seq=3)
        ends = [i for i, e in enumerate(h.seen) if isinstance(e, Finished | Interrupted)]
        assert len(ends) == 2
        assert max(ends) < h.seen.index(Pulled("r0", 2, answers=3))


def test_tokens_that_belong_to_somebody_else_stop_quietly():
    gate, steps = threading.Event(), []

    class Gated(FakeEngine):
        def step(self):
            steps.append(None)
            if len(steps) > 2 and not gate.is_set():
                time.sleep(0.002)
                return []
            return super().step()

    source = MemorySource(prompts(2))
    with Harness(source, engine=Gated()) as h:
        h.pull(1)
        h.worker.submit(route(2, "0", "1"))
        h.until("tokens of both", lambda: all(kept.tokens for kept in source.kept.values()))
        source.take_away("0")
        gate.set()
        h.until("silence", lambda: h.of(Finished) and h.of(Snapshot) and h.of(Snapshot)[-1].running == 0)
        h.until("the worker to hear of it", lambda: h.worker.dropped == 1)
        assert [event.trajectory for event in h.of(Finished)] == ["1"]
        assert_consistent(source)


def test_a_trajectory_that_the_source_dropped_is_not_generated():
    with Harness(MemorySource(prompts(1))) as h:
        h.pull(1)
        h.worker.submit(route(2, "0", "5"))
        h.until("the one that is left", lambda: h.of(Finished))
        assert h.worker.dropped == 1


def test_a_version_that_nobody_holds_leaves_the_served_one():
    with Harness(MemorySource(prompts(1))) as h:
        h.pull(1)
        h.pull(99, seq=2)
        assert "99" in h.of(PullFailed)[0].reason
        h.worker.submit(route(3, "0"))
        h.until("it to finish", lambda: h.of(Finished))
        assert set(h.source.kept["0"].versions) == {1}


@pytest.mark.parametrize("broken", [{"v": 1}, {"w": 1, "x": 2}, "stream"])
def test_after_a_load_that_broke_off_midway_nothing_is_served_until_a_complete_one(broken):
    def stream():
        yield "w", 1
        raise ConnectionError("the relay went away")

    class Broken(dict):
        def items(self):
            return stream()

    versions = MemoryWeights({1: {"w": 101}, 2: Broken() if broken == "stream" else broken, 3: {"w": 103}})
    with Harness(MemorySource(prompts(1)), weights=versions) as h:
        h.pull(1)
        h.pull(2, seq=2)
        assert "midway" in h.of(PullFailed)[0].reason
        h.until("a snapshot", lambda: any(event.last_seq == 2 for event in h.of(Snapshot)))
        assert h.of(Snapshot)[-1].version is None
        h.pull(3, seq=3)
        h.worker.submit(route(4, "0"))
        h.until("it to finish", lambda: h.of(Finished))
        assert set(h.source.kept["0"].versions) == {3}


def test_close_hands_over_what_was_generated():
    source = MemorySource(prompts(4))
    h = Harness(source, engine=Slow(max_num_seqs=2, unseen=3), flush_s=60, snapshot_s=60)
    h.pull(1)
    h.worker.submit(route(2, *prompts(4)))
    deadline = time.monotonic() + DEADLINE_S
    while not h.engine._made or not all(h.engine._made[t] for t in list(h.engine._made)[:2]):
        assert time.monotonic() < deadline
    h.worker.close(DEADLINE_S)
    assert_consistent(source)
    assert sum(len(kept.tokens) for kept in source.kept.values()) > 0
    assert h.engine.closed
    assert not h.worker.alive()


def test_events_wait_for_the_first_and_give_up_at_the_deadline():
    with Harness(MemorySource(prompts(1)), snapshot_s=60) as h:
        assert h.worker.events(0.02) == []
        h.worker.submit(Pull(1, "r0", 1))
        pulled, snapshot = h.worker.events(DEADLINE_S)  # a snapshot shows at once that the command was carried out
        assert pulled == Pulled("r0", 1, answers=1)
        assert (snapshot.version, snapshot.last_seq) == (1, 1)
