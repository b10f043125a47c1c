"""An engine that stands still is told of, by another thread than the one that is stuck in it; waiting for others is not."""

import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import (
    Activity,
    EngineStats,
    Finished,
    Interrupt,
    Interrupted,
    Pull,
    Pulled,
    Route,
    Sampling,
    Snapshot,
    TrajectoryRef,
)
from tailrace.rollout import ReplicaCrashedError, ReplicaWorker
from tailrace.rollout.standstill import GENERATING, IDLE, PULLING, Standstill
from tailrace.rollout.testing import FakeEngine, MemorySource, MemoryWeights

REPORT_S, DEADLINE_S, LENGTH = 0.1, 30.0, 12


class Clock:
    """Shows what it is told to."""

    def __init__(self):
        self.time = 100.0

    def now(self):
        return self.time


class Watched:
    """A `Standstill` whose clock is moved by hand, and that is looked at once a second."""

    def __init__(self):
        self.clock = Clock()
        self.standstill = Standstill("r0", 4.0, self.clock)
        assert self.standstill.look_s == 1

    def wait(self, seconds):
        told = []
        for _ in range(seconds):
            self.clock.time += 1
            told += self.standstill.news()
        return told


def activity(phase, progress, still_s, slowest_s=0.0):
    return Activity("replica", "r0", phase, progress, still_s, slowest_s)


def test_a_standstill_is_told_again_and_again_and_its_end_once():
    watched = Watched()
    watched.standstill.at(GENERATING)
    assert watched.wait(3) == []
    watched.standstill.moved(steps=1)
    assert watched.wait(3) == []
    assert watched.wait(12) == [activity(GENERATING, 1, still_s, 3) for still_s in (4, 8, 12)]
    watched.standstill.moved(steps=1)
    assert watched.wait(3) == [activity(GENERATING, 2, 0, 15)]
    assert watched.wait(1) == [activity(GENERATING, 2, 4, 15)]


def test_what_has_no_work_does_not_stand_still_and_the_end_of_the_work_ends_it():
    watched = Watched()
    assert watched.wait(60) == []
    watched.standstill.at(GENERATING)
    assert watched.wait(6) == [activity(GENERATING, 0, 4)]
    watched.standstill.at(IDLE)
    assert watched.wait(60) == [activity(IDLE, 0, 0)]
    watched.standstill.at(GENERATING)
    assert watched.wait(3) == []


def test_each_phase_has_a_slowest_step_of_its_own():
    watched = Watched()
    watched.standstill.at(GENERATING)
    watched.wait(2)
    watched.standstill.moved(steps=1)
    watched.standstill.at(PULLING)
    watched.wait(3)
    watched.standstill.moved()
    assert watched.wait(4) == [activity(PULLING, 1, 4, 3)]
    watched.standstill.at(GENERATING)
    assert watched.wait(1) == [activity(GENERATING, 1, 0, 2)]


def test_waiting_for_somebody_else_is_not_counted():
    watched = Watched()
    watched.standstill.at(GENERATING)
    watched.wait(2)
    with watched.standstill.elsewhere():
        assert watched.wait(60) == []
    assert watched.wait(1) == []
    assert watched.wait(1) == [activity(GENERATING, 0, 4)]


def test_a_process_that_was_suspended_did_not_stand_still():
    watched = Watched()
    watched.standstill.at(GENERATING)
    watched.wait(2)
    watched.clock.time += 3600
    assert watched.wait(1) == []
    assert watched.wait(2) == [activity(GENERATING, 0, 4)]
    watched.clock.time += 3600
    watched.standstill.moved(steps=1)
    assert watched.wait(1) == [activity(GENERATING, 1, 0, 4)]


class Reference:
    """Counts seconds one by one."""

    def __init__(self):
        self.phase, self.still, self.slowest, self.steps, self.untold = IDLE, 0, 0, 0, None

    def at(self, phase):
        self.still = self.still if phase == self.phase else 0
        self.phase = phase

    def moved(self):
        self.slowest, self.still, self.steps = max(self.slowest, self.still), 0, self.steps + 1

    def wait(self, seconds, elsewhere):
        told = []
        for _ in range(seconds):
            self.still += self.phase == GENERATING and not elsewhere
            self.untold = None if self.untold is None else self.untold + 1
            slowest = self.slowest if self.phase == GENERATING else 0
            if self.still >= 4 and self.untold in (None, 4):
                self.untold = 0
                told.append(activity(self.phase, self.steps, self.still, slowest))
            elif self.still < 4 and self.untold is not None:
                self.untold = None
                told.append(activity(self.phase, self.steps, 0, slowest))
        return told


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["move", "elsewhere", "idle", "work", "wait"]), st.integers(0, 9)), max_size=40)
)
def test_what_is_told_is_what_counting_the_seconds_says(steps):
    watched, reference = Watched(), Reference()
    for what, seconds in steps:
        if what == "move" and reference.phase == GENERATING:
            watched.standstill.moved(steps=1)
            reference.moved()
        elif what in ("idle", "work"):
            phase = GENERATING if what == "work" else IDLE
            watched.standstill.at(phase)
            reference.at(phase)
        if what == "elsewhere":
            with watched.standstill.elsewhere():
                told = watched.wait(seconds)
        else:
            told = watched.wait(seconds)
        assert told == reference.wait(seconds, what == "elsewhere")


# ---------------------------------------------------------------------------------------------- a worker and its threads


class Gated(FakeEngine):
    """Its steps never return while it is shut."""

    def __init__(self, **options):
        super().__init__(**options)
        self.open = threading.Event()
        self.open.set()
        self.stuck = threading.Event()

    def step(self):
        if not self.open.is_set():
            self.stuck.set()
            assert self.open.wait(DEADLINE_S)
            self.stuck.clear()
        time.sleep(0.001)
        return super().step()


def prompts(count):
    return {str(index): (index, index + 1) for index in range(count)}


def route(seq, *trajectories):
    return Route(seq, "r0", tuple(TrajectoryRef(trajectory, int(trajectory), 0) for trajectory in trajectories))


class Harness:
    """A worker that serves version 1, and everything that it has told."""

    def __init__(self, engine, source=None, length=LENGTH, **options):
        self.engine, self.source, self.seen = engine, source or MemorySource(prompts(4)), []
        weights = options.pop("weights", MemoryWeights({version: {"w": version} for version in range(4)}))
        options = {"flush_s": 0.002, "snapshot_s": 0.01, "still_report_s": REPORT_S, **options}
        sampling = Sampling(max_tokens=length)
        self.worker = ReplicaWorker("r0", engine, self.source, weights, sampling=lambda ref: sampling, **options)
        self.worker.submit(Pull(1, "r0", 1))
        self.until("the pull", lambda: any(isinstance(event, Pulled) for event in self.seen))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.worker.close(DEADLINE_S)

    def until(self, what, done):
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            self.seen += self.worker.events(0.05)
            assert time.monotonic() < deadline, f"waited for {what}; saw {self.seen[-5:]}"

    def watch(self, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.seen += self.worker.events(0.05)

    def of(self, kind):
        return [event for event in self.seen if isinstance(event, kind)]


def test_a_step_that_does_not_return_is_told_while_it_lasts_and_once_when_it_has():
    with Harness(Gated()) as h:
        h.worker.submit(route(2, "0", "1"))
        h.until("tokens", lambda: all(len(h.source.kept[t].tokens) >= 2 for t in "01"))
        h.engine.open.clear()
        began = time.monotonic()
        h.until("the standstill", lambda: len(h.of(Activity)) == 4)
        lasted = time.monotonic() - began
        assert lasted >= 3.9 * REPORT_S, "told more often than asked for"
        told = h.of(Activity)
        assert {(one.role, one.id, one.phase) for one in told} == {("replica", "r0", "generating")}
        assert len({one.progress for one in told}) == 1
        assert [one.still_s for one in told] == sorted(one.still_s for one in told)
        assert told[0].still_s >= REPORT_S
        assert told[-1].still_s <= lasted + 1
        assert not h.worker.events(0)
        h.engine.open.set()
        h.until("the end of it", lambda: len(h.of(Activity)) == 5)
        assert (h.of(Activity)[-1].still_s, h.of(Activity)[-1].phase in ("generating", "idle")) == (0.0, True)
        h.until("all to finish", lambda: len(h.of(Finished)) == 2)
        h.watch(3 * REPORT_S)
        assert len(h.of(Activity)) == 5
        assert max(event.steps for event in h.of(Snapshot)) == LENGTH


def test_steps_that_return_nothing_are_a_standstill_and_commands_are_still_carried_out():
    class Barren(FakeEngine):
        def step(self):
            time.sleep(0.002)
            return []

    with Harness(Barren()) as h:
        h.worker.submit(route(2, "0"))
        h.until("the standstill", lambda: len(h.of(Activity)) == 2)
        assert [one.progress for one in h.of(Activity)] == [0, 0]
        h.worker.submit(Interrupt(3, "r0", ("0",)))
        h.until("the answer", lambda: h.of(Interrupted))
        h.until("the end of it", lambda: h.of(Activity)[-1].still_s == 0)
        assert h.of(Activity)[-1].phase == "idle"
        h.watch(3 * REPORT_S)
        assert h.of(Activity)[-1] is h.of(Activity)[2]


def test_waiting_for_an_environment_is_not_standing_still():
    class Tools(FakeEngine):
        """Everything in flight is with a tool at first."""

        answered = False

        def step(self):
            if not self.answered:
                time.sleep(0.002)
                return []
            return super().step()

        def stats(self):
            return super().stats() if self.answered else EngineStats(0.0, 0, 0)

    with Harness(Tools()) as h:
        h.worker.submit(route(2, "0"))
        h.watch(5 * REPORT_S)
        assert h.of(Activity) == []
        h.engine.answered = True
        h.until("it to finish", lambda: h.of(Finished))
        h.engine.answered = False
        h.worker.submit(route(3, "1"))
        h.watch(3 * REPORT_S)
        assert h.of(Activity) == []
        h.worker.stall()
        h.until("a standstill, whatever the tool does", lambda: h.of(Activity))


def test_a_source_that_hangs_is_not_the_engines_standstill():
    gate = threading.Event()

    class Slow(MemorySource):
        def begin(self, replica, version, refs):
            if any(ref.trajectory == "1" for ref in refs):
                assert gate.wait(DEADLINE_S)
            return super().begin(replica, version, refs)

    with Harness(Gated(), Slow(prompts(2))) as h:
        h.engine.open.clear()
        h.worker.submit(route(2, "0"))
        assert h.engine.stuck.wait(DEADLINE_S)
        h.worker.submit(route(3, "1"))
        h.engine.open.set()
        h.watch(6 * REPORT_S)
        assert [one for one in h.of(Activity) if one.still_s > 3 * REPORT_S] == []
        gate.set()
        h.until("both", lambda: len(h.of(Finished)) == 2)


def test_a_source_that_is_behind_is_not_the_engines_standstill():
    gate = threading.Event()

    class Behind(MemorySource):
        def append(self, replica, deltas):
            assert gate.wait(DEADLINE_S)
            return super().append(replica, deltas)

    engine = Gated(max_model_len=1000)
    with Harness(engine, Behind(prompts(1)), length=500, flush_s=0.0) as h:
        h.worker.submit(route(2, "0"))
        h.until("a full queue", lambda: h.worker._flusher._batches.full())
        h.watch(6 * REPORT_S)
        assert h.of(Activity) == []
        gate.set()
        h.until("it to finish", lambda: h.of(Finished))


def test_an_engine_that_never_takes_its_first_work_stands_still():
    gate = threading.Event()

    class Deaf(FakeEngine):
        def submit(self, requests):
            assert gate.wait(DEADLINE_S)
            super().submit(requests)

    with Harness(Deaf()) as h:
        h.worker.submit(route(2, "0"))
        h.until("the standstill", lambda: h.of(Activity))
        gate.set()
        h.until("it to finish", lambda: h.of(Finished))


def test_a_pull_that_hangs_is_told_as_such():
    gate = threading.Event()

    class Stuck(dict):
        def items(self):
            yield "w", 2
            assert gate.wait(DEADLINE_S)

    with Harness(FakeEngine(), weights=MemoryWeights({1: {"w": 1}, 2: Stuck()})) as h:
        h.worker.submit(Pull(2, "r0", 2))
        h.until("the standstill", lambda: h.of(Activity))
        assert h.of(Activity)[0].phase == "pulling"
        gate.set()
        h.until("the pull", lambda: h.of(Pulled)[-1].answers == 2)
        h.until("the end of it", lambda: h.of(Activity)[-1].still_s == 0)


def test_a_scripted_stall_stands_still_until_it_is_closed_and_keeps_its_tokens():
    source = MemorySource(prompts(4))
    h = Harness(Gated(max_num_seqs=2, unseen=2), source, flush_s=60)
    h.worker.submit(route(2, "0", "1", "2"))
    h.until("steps", lambda: h.of(Snapshot) and h.of(Snapshot)[-1].steps >= 1)
    h.worker.stall()
    h.until("the standstill", lambda: h.of(Activity))
    assert h.worker.alive(), "its process lives"
    assert not h.engine.stuck.is_set()
    seen = len(h.of(Snapshot))
    h.worker.submit(Interrupt(3, "r0", ("0",)))
    h.worker.submit(route(4, "3"))
    h.until("more of it", lambda: len(h.of(Activity)) >= 3)
    assert len(h.of(Snapshot)) == seen
    assert h.of(Interrupted) == []
    h.worker.close(DEADLINE_S)
    assert h.engine.closed
    h.until("the end of it", lambda: h.of(Activity)[-1].still_s == 0)
    assert sum(len(kept.tokens) for kept in source.kept.values()) > 0
    with Harness(FakeEngine(), source) as again:
        unfinished = [trajectory for trajectory, kept in source.kept.items() if kept.finish is None]
        again.worker.submit(route(2, *unfinished))
        again.until("the rest", lambda: len(again.of(Finished)) == len(unfinished))
    assert {len(kept.tokens) for kept in source.kept.values()} == {LENGTH}


def test_a_stall_without_work_shows_with_the_first_work():
    with Harness(FakeEngine()) as h:
        h.worker.stall()
        h.worker.submit(Pull(2, "r0", 2))
        h.until("the pull", lambda: h.of(Pulled)[-1].answers == 2)
        h.watch(3 * REPORT_S)
        assert h.of(Activity) == []
        h.worker.submit(route(3, "0"))
        h.until("the standstill", lambda: h.of(Activity))
        assert h.source.kept["0"].tokens == []


def test_a_worker_that_crashed_does_not_stand_still():
    class Failing(FakeEngine):
        def step(self):
            time.sleep(2 * REPORT_S)
            raise RuntimeError("out of memory")

    with Harness(Failing()) as h:
        h.worker.submit(route(2, "0"))
        with pytest.raises(ReplicaCrashedError):
            h.watch(DEADLINE_S)
        for _ in range(3):
            with pytest.raises(ReplicaCrashedError):
                h.worker.events(2 * REPORT_S)


@pytest.mark.parametrize("seed", range(5))
def test_slow_steps_at_random_are_told_if_they_are_slow_enough_and_only_then(seed):
    draw = random.Random(seed)
    slow = []  # when a slow step began and ended

    class Uneven(FakeEngine):
        def step(self):
            began = time.monotonic()
            pause_s = draw.choice([0.0, 0.0, 0.01, 0.01, 5 * REPORT_S]) if len(slow) < 3 else 0.001
            if pause_s > REPORT_S:
                slow.append([began, float("inf")])
            time.sleep(pause_s)
            deltas = super().step()
            if pause_s > REPORT_S:
                slow[-1][1] = time.monotonic()
            return deltas

    with Harness(Uneven(max_num_seqs=1), MemorySource(prompts(4))) as h:
        h.worker.submit(route(2, *prompts(4)))
        told = []
        deadline = time.monotonic() + DEADLINE_S
        while len(h.of(Finished)) < 4:
            events = h.worker.events(0.05)
            told += [(time.monotonic(), event) for event in events if isinstance(event, Activity)]
            h.seen += events
            assert time.monotonic() < deadline, f"seed {seed}"
        told += [(time.monotonic(), event) for event in h.worker.events(0.05) if isinstance(event, Activity)]
    for began, ended in slow:
        during = [event for at, event in told if began <= at <= ended and event.still_s > 0]
        assert during, f"seed {seed}: a step of {ended - began:.2f} s was not told"
        assert all(event.still_s <= ended - began + REPORT_S for event in during), f"seed {seed}"
    ends = [event for _, event in told if event.still_s == 0]
    assert 1 <= len(ends) <= len(slow), f"seed {seed}: {told}"
    assert ends[-1].slowest_s >= 5 * REPORT_S, f"seed {seed}"


SUSPENDED = """
import sys, threading, time
from tailrace.contracts import Activity, Pull, Route, Sampling, TrajectoryRef
from tailrace.rollout import ReplicaWorker
from tailrace.rollout.testing import FakeEngine, MemorySource, MemoryWeights

class Slow(FakeEngine):
    def step(self):
        time.sleep(0.05)
        return super().step()

source = MemorySource({"0": (1, 2)})
worker = ReplicaWorker("r0", Slow(max_model_len=10**6), source, MemoryWeights({1: {"w": 1}}),
                       sampling=lambda ref: Sampling(max_tokens=10**6), still_report_s=0.5)
worker.submit(Pull(1, "r0", 1))
worker.submit(Route(2, "r0", (TrajectoryRef("0", 0, 0),)))
threading.Thread(target=lambda: (sys.stdin.read(), worker.stall()), daemon=True).start()
while True:
    for event in worker.events(0.05):
        if isinstance(event, Activity) or source.kept["0"].tokens:
            print(type(event).__name__, getattr(event, "still_s", 0.0), flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="there is no SIGSTOP")
def test_a_process_that_was_stopped_for_a_while_is_not_taken_for_an_engine_that_stands_still():
    child = subprocess.Popen(
        [sys.executable, "-c", SUSPENDED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout.readline().startswith("Snapshot")
        child.send_signal(signal.SIGSTOP)
        time.sleep(4)
        child.send_signal(signal.SIGCONT)
        time.sleep(1)
        child.stdin.close()  # and now it does stand still
        told = []
        while len(told) < 2:
            line = child.stdout.readline().split()
            assert line, "the process ended"
            told += [float(line[1])] if line[0] == "Activity" else []
        assert max(told) < 3, told
    finally:
        child.kill()
        child.wait(timeout=DEADLINE_S)
        child.stdout.close()
