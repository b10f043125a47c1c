"""What a replica hands to its flusher, and when: on a clock that the test moves."""

import random
from collections import defaultdict
from typing import Any

import pytest

from tailrace.contracts import Delta, EngineStats, Finished, FinishReason, Interrupted, TurnEnded
from tailrace.rollout.reports import Reports
from tailrace.rollout.standstill import Standstill


class Moved:
    """A clock."""

    def __init__(self):
        self.at = 0.0

    def now(self):
        return self.at


class Batches:
    """A flusher that keeps what it gets, with the time."""

    def __init__(self, clock):
        self.clock, self.got = clock, []

    def put(self, batch):
        self.got.append((self.clock.at, batch))


@pytest.fixture
def clock():
    return Moved()


@pytest.fixture
def make(clock):
    def reports(**given):
        flusher: Any = Batches(clock)
        given = {"flush_s": 0.1, "finished_s": 0.1, "partial_s": 0.5, "snapshot_s": 60.0, **given}
        return Reports("r0", flusher, Standstill("r0", 5.0, clock), clock, **given), flusher

    return reports


def test_tokens_of_what_goes_on_wait_and_those_of_what_ended_do_not(make, clock):
    reports, flusher = make()
    for name in ("1", "2", "3"):
        reports.tokens(Delta(name, (5, 6), (-1.0, -2.0)), 0, 4, turn_ends=False)
    reports.event(Finished("r0", "1", 2, FinishReason.STOP))
    reports.event(Interrupted("r0", "2", 2))
    clock.at = 0.05
    reports.flush_if_due()
    assert flusher.got == []
    clock.at = 0.1
    reports.flush_if_due()
    ((_, batch),) = flusher.got
    assert [delta.trajectory for delta in batch.deltas] == ["1", "2"]
    assert [event.trajectory for event in batch.events] == ["1", "2"]
    for clock.at in (0.25, 0.4, 0.55):
        reports.flush_if_due()
    assert [(at, [delta.trajectory for delta in one.deltas]) for at, one in flusher.got[1:]] == [(0.55, ["3"])]


def test_ends_of_responses_wait_for_one_another_and_anything_else_takes_them_along(make, clock):
    reports, flusher = make(finished_s=0.25)
    for clock.at, name in ((0.05, "1"), (0.15, "2"), (0.24, "3"), (0.25, "4"), (0.36, "5")):
        reports.event(Finished("r0", name, 0, FinishReason.STOP))
        reports.flush_if_due()
    clock.at = 0.37
    reports.event(TurnEnded("r0", "6", 0))
    reports.flush_if_due()
    told = [(at, [event.trajectory for event in batch.events]) for at, batch in flusher.got]
    assert told == [(0.25, ["1", "2", "3", "4"]), (0.37, ["5", "6"])]


@pytest.mark.parametrize("seed", range(20))
def test_replicas_of_a_machine_show_their_load_at_the_same_times(make, clock, seed):
    numbers, period_s = random.Random(seed), 0.25
    clock.at = numbers.uniform(0.0, 1e5)
    reports, _ = make(snapshot_s=period_s)
    for _ in range(20):
        clock.at += numbers.uniform(0.0, 0.6)
        reports.snapshot(EngineStats(0.0, 0, 0), 0, 1, 1)
        due_s = reports.snapshot_due_s
        assert 0.5 * period_s - 1e-6 <= due_s <= 1.5 * period_s + 1e-6
        times = (clock.at + due_s) / period_s
        assert abs(times - round(times)) < 1e-6


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_all_tokens_arrive_in_order_before_what_is_said_of_them(make, clock, seed):
    numbers = random.Random(seed)
    reports, flusher = make(partial_s=numbers.choice([0.1, 0.5, 3.0]), finished_s=numbers.choice([0.1, 0.3]))
    made, alive = defaultdict(int), [str(number) for number in range(12)]
    while alive:
        clock.at += numbers.uniform(0.0, 0.08)
        name = numbers.choice(alive)
        count, ends = numbers.randrange(4), numbers.random() < 0.05
        if count:
            tokens = tuple(range(made[name], made[name] + count))
            finish = FinishReason.STOP if ends else None
            reports.tokens(Delta(name, tokens, (-1.0,) * count, finish), made[name], 1, turn_ends=False)
            made[name] += count
        if ends:
            alive.remove(name)
            reports.event(Finished("r0", name, made[name], FinishReason.STOP))
        if numbers.random() < 0.3:
            reports.flush_if_due()
    reports.flush(everything=True)
    stored = defaultdict(list)
    for _, batch in flusher.got:
        for delta in batch.deltas:
            assert delta.offset == len(stored[delta.trajectory]), seed
            stored[delta.trajectory] += delta.tokens
        for event in batch.events:
            assert len(stored[event.trajectory]) == event.tokens, seed
    whole = {name: list(range(count)) for name, count in made.items() if count}
    assert whole == {name: tokens for name, tokens in stored.items() if tokens}, seed
