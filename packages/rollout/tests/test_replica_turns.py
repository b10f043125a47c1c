"""A replica worker whose stop tokens end turns: answers of an environment stand among its tokens, and nothing is lost."""

import dataclasses
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import Abort, Finished, FinishReason, Interrupt, Interrupted, Pull, Resume, Sampling, TurnEnded
from tailrace.rollout.resumption import finished_with, request_of, tokens_left
from tailrace.rollout.testing import MemorySource, fake_token

from .replica_harness import DEADLINE_S, STOP, Harness, Slow, prompts, route

LENGTH = 60
STOPS = (STOP, *range(8, 16))  # of 50 tokens, so that a turn has about five
TALKING = Sampling(max_tokens=LENGTH, stop_token_ids=STOPS, turns=True)


def assert_consistent(source):
    """Token by token: drawn by its version at its position, or told by the environment with log-probability 0.0."""
    for trajectory, kept in source.kept.items():
        assert len(kept.tokens) == len(kept.logprobs) == len(kept.versions), trajectory
        for position, found in enumerate(zip(kept.tokens, kept.logprobs, kept.versions, strict=True)):
            if position in kept.observed:
                assert found[1:] == (0.0, kept.versions[position - 1]), trajectory
                continue
            assert found[:2] == fake_token(100 + found[2], kept.prompt, position), (trajectory, position)
            follows = position + 1 < len(kept.tokens) and position + 1 not in kept.observed
            assert not (follows and found[0] in STOPS), f"{trajectory} went on behind the end of a turn at {position}"
        if kept.turn_ended:
            assert kept.tokens[-1] in STOPS
            assert len(kept.tokens) - 1 not in kept.observed


def test_a_stop_token_ends_a_turn_and_the_limit_the_response():
    with Harness(MemorySource(prompts(4)), sampling=TALKING) as h:
        h.pull(1)
        h.worker.submit(route(2, *prompts(4)))
        seq, ended = 2, 0
        while len(h.of(Finished)) < 4:
            h.until("a turn or an end", lambda: len(h.of(TurnEnded)) + len(h.of(Finished)) > ended)  # noqa: B023
            for event in (e for e in h.seen if isinstance(e, TurnEnded | Finished)):
                kept = h.source.kept[event.trajectory]
                if isinstance(event, Finished):
                    assert event.reason is FinishReason.LENGTH
                    assert event.tokens >= LENGTH  # an answer may exceed it
                elif kept.turn_ended and event.tokens == len(kept.tokens):
                    assert kept.finish is None
                    h.source.observe(event.trajectory, (3, STOP))  # an answer that ends with a stop token
                    seq += 1
                    h.worker.submit(route(seq, event.trajectory))
            ended = len(h.of(TurnEnded)) + len(h.of(Finished))
        assert_consistent(h.source)
        assert all(len(kept.tokens) >= LENGTH and kept.observed for kept in h.source.kept.values())


@pytest.mark.parametrize("repeated", [0, 1, 3])
def test_what_a_context_repeats_leaves_room_for_as_many_tokens(repeated):
    """Five tokens of the first context, and of the second three that it begins with and one that was generated since."""
    resume = Resume("a", (7, 8, 9), (1, 2, 3, 4, 5, 7, 8, 9, 6), (0.0,) * 9, context=5, repeated=repeated)
    request = request_of(resume, Sampling(max_tokens=12, turns=True))
    assert (request.prompt, request.kept) == ((7,), (8, 9, 6))
    assert tokens_left(request, 100) == 12 - (9 - repeated)
    full = request_of(resume, Sampling(max_tokens=9 - repeated, turns=True))
    assert finished_with(full.kept, full.sampling) is FinishReason.LENGTH


def test_a_turn_that_had_ended_is_told_again_without_the_engine():
    source = MemorySource(prompts(1))
    kept = source.kept["0"]
    kept.tokens, kept.logprobs, kept.versions, kept.turn_ended = [5, STOP], [-1.0, -1.0], [0, 0], True
    with Harness(source, sampling=TALKING) as h:
        h.pull(3)
        h.worker.submit(route(2, "0"))
        h.until("the end of the turn", lambda: h.of(TurnEnded))
        assert h.of(TurnEnded) == [TurnEnded("r0", "0", 2, answers=2)]
        assert not h.of(Finished)


def test_an_interruption_of_a_turn_that_has_just_ended_is_answered_by_its_end():
    with Harness(MemorySource(prompts(1)), sampling=TALKING) as h:
        h.pull(0)
        h.worker.submit(route(2, "0"))
        h.until("the end of the turn", lambda: h.of(TurnEnded))
        h.worker.submit(Interrupt(3, "r0", ("0",)))
        h.watch(0.05)
        assert not h.of(Interrupted)


@pytest.mark.parametrize("turns", [False, True])
def test_existing_tokens_that_end_with_a_stop_token_are_complete_unless_an_environment_told_them(turns):
    sampling = dataclasses.replace(TALKING, max_tokens=3, turns=turns)
    assert finished_with((1, STOP), sampling) is (None if turns else FinishReason.STOP)
    assert finished_with((1, 1, STOP), sampling) is (FinishReason.LENGTH if turns else FinishReason.STOP)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 6), batch=st.integers(1, 4), ahead=st.integers(0, 3))
def test_turns_lose_nothing_whatever_comes_between(seed, count, batch, ahead):
    draw = random.Random(seed)
    source = MemorySource(prompts(count))
    with Harness(source, engine=Slow(max_num_seqs=batch, unseen=ahead), sampling=TALKING) as h:
        h.pull(0)
        seq, version = 1, 0
        here, dropped = set(), set()

        def settle():
            for event in h.collect(0):
                if isinstance(event, Finished | Interrupted | TurnEnded):
                    here.discard(event.trajectory)
                    kept = source.kept[event.trajectory]
                    tokens = event.tokens_kept if isinstance(event, Interrupted) else event.tokens
                    assert tokens == len(kept.tokens)
                    assert isinstance(event, TurnEnded) == kept.turn_ended

        def answer(trajectory):
            tokens = [draw.choice([*STOPS, 1, 2]) for _ in range(draw.randint(1, 6))]
            source.observe(trajectory, tokens)

        for _ in range(draw.randint(1, 25)):
            settle()
            seq += 1
            action = draw.choice(["route", "route", "answer", "answer", "interrupt", "pull", "abort", "wait"])
            idle = [t for t in source.kept if t not in here | dropped and source.kept[t].finish is None]
            waiting = [t for t in idle if source.kept[t].turn_ended]
            if action == "route" and idle:  # also one whose turn has ended: it is told again
                chosen = draw.sample(idle, draw.randint(1, len(idle)))
                here.update(chosen)
                h.worker.submit(route(seq, *chosen))
            elif action == "answer" and waiting:
                answer(draw.choice(waiting))
            elif action == "interrupt":
                h.worker.submit(Interrupt(seq, "r0", tuple(draw.sample(sorted(source.kept), draw.randint(0, count)))))
            elif action == "pull":
                version = draw.randint(version, 5)
                h.worker.submit(Pull(seq, "r0", version))
            elif action == "abort" and here and draw.random() < 0.3:
                gone = draw.choice(sorted(here))
                h.worker.submit(Abort(seq, (gone,)))
                here.discard(gone)
                dropped.add(gone)
            else:
                time.sleep(draw.choice([0, 0.002, 0.01]))
        deadline = time.monotonic() + DEADLINE_S
        while any(source.kept[t].finish is None for t in source.kept.keys() - dropped):
            settle()
            for trajectory in source.kept.keys() - dropped - here:
                if source.kept[trajectory].finish is None:
                    if source.kept[trajectory].turn_ended:
                        answer(trajectory)
                    seq += 1
                    here.add(trajectory)
                    h.worker.submit(route(seq, trajectory))
            assert time.monotonic() < deadline, f"seed {seed}: unfinished: {here}"
        assert_consistent(source)
        for trajectory in source.kept.keys() - dropped:
            kept = source.kept[trajectory]
            assert kept.finish is FinishReason.LENGTH
            assert len(kept.tokens) >= LENGTH
