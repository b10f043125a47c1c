"""A replica whose engine stands still says so while it lasts, from the thread that asks; waiting for others is not that."""

import random
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise

import pytest

from tailrace.contracts import Activity, EngineStats, Finished, Interrupt, Interrupted, Pull, Pulled, Sampling, Snapshot
from tailrace.rollout import ReplicaCrashedError
from tailrace.rollout.testing import FakeEngine, MemorySource, MemoryWeights

from .replica_harness import DEADLINE_S, Harness, prompts, route

REPORT_S = 0.1


class Gated(FakeEngine):
    """Its steps do not return while it is shut. `then` is called in its fifth step."""

    def __init__(self, **options):
        super().__init__(**options)
        self.open, self.stuck = threading.Event(), threading.Event()
        self.open.set()
        self.then, self._left = lambda: None, 5

    def step(self):
        self._left -= 1
        if not self._left:
            self.then()
        if not self.open.is_set():
            self.stuck.set()
            assert self.open.wait(DEADLINE_S)
        time.sleep(0.001)
        return super().step()


def serving(engine, source=None, **options):
    """A harness whose worker serves version 1."""
    harness = Harness(source or MemorySource(prompts(4)), engine=engine, still_report_s=REPORT_S, **options)
    harness.pull(1)
    return harness


def test_a_step_that_does_not_return_is_told_while_it_lasts_and_once_when_it_has():
    engine = Gated()
    engine.then = engine.open.clear
    with serving(engine) as h:
        h.worker.submit(route(2, "0", "1"))
        h.until("the standstill", lambda: len(h.of(Activity)) == 4)
        told = h.of(Activity)
        assert {(one.role, one.id, one.phase, one.progress) for one in told} == {("replica", "r0", "generating", 4)}
        assert told[0].still_s >= REPORT_S
        assert all(later.still_s - one.still_s >= 0.99 * REPORT_S for one, later in pairwise(told)), "too often"
        engine.open.set()
        h.until("the end of it", lambda: h.of(Activity)[-1].still_s == 0)
        assert h.of(Activity)[-1].phase in ("generating", "idle")
        h.until("all to finish", lambda: len(h.of(Finished)) == 2)
        h.watch(3 * REPORT_S)
        assert [one.still_s for one in h.of(Activity)].count(0) == 1
        assert h.of(Activity)[-1].still_s == 0
        assert h.of(Snapshot)[-1].steps == max(len(kept.tokens) for kept in h.source.kept.values())


def test_steps_that_return_nothing_are_a_standstill_and_commands_are_still_carried_out():
    class Barren(FakeEngine):
        def step(self):
            time.sleep(0.002)
            return []

    with serving(Barren()) as h:
        h.worker.submit(route(2, "0"))
        h.until("the standstill", lambda: len(h.of(Activity)) == 2)
        assert [one.progress for one in h.of(Activity)] == [0, 0]
        h.worker.submit(Interrupt(3, "r0", ("0",)))
        h.until("the answer", lambda: h.of(Interrupted))
        h.until("the end of it", lambda: h.of(Activity)[-1].still_s == 0)
        end = h.of(Activity)[-1]
        assert end.phase == "idle"
        h.watch(3 * REPORT_S)
        assert h.of(Activity)[-1] is end


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

    with serving(Tools()) as h:
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
    gate, asked = threading.Event(), threading.Event()

    class Slow(MemorySource):
        def begin(self, replica, version, refs, seq):
            if any(ref.trajectory == "1" for ref in refs):
                asked.set()
                assert gate.wait(DEADLINE_S)
            return super().begin(replica, version, refs, seq)

    with serving(Gated(), Slow(prompts(2))) as h:
        h.engine.then = lambda: h.worker.submit(route(3, "1"))
        h.worker.submit(route(2, "0"))
        assert asked.wait(DEADLINE_S)
        h.watch(6 * REPORT_S)
        assert h.of(Activity) == []
        gate.set()
        h.until("both", lambda: len(h.of(Finished)) == 2)


def test_a_source_that_is_behind_is_not_the_engines_standstill():
    gate = threading.Event()

    class Behind(MemorySource):
        def append(self, replica, deltas):
            assert gate.wait(DEADLINE_S)
            return super().append(replica, deltas)

    engine = Gated(max_model_len=1000)
    with serving(engine, Behind(prompts(1)), sampling=Sampling(max_tokens=500), flush_s=0.0) as h:
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

    with serving(Deaf()) as h:
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

    with serving(FakeEngine(), weights=MemoryWeights({1: {"w": 1}, 2: Stuck()})) as h:
        h.worker.submit(Pull(2, "r0", 2))
        h.until("the standstill", lambda: h.of(Activity))
        assert h.of(Activity)[0].phase == "pulling"
        gate.set()
        h.until("the pull", lambda: h.of(Pulled)[-1].answers == 2)
        h.until("the end of it", lambda: h.of(Activity)[-1].still_s == 0)


def test_a_scripted_stall_stands_still_until_it_is_closed_and_keeps_its_tokens():
    source = MemorySource(prompts(4))
    h = serving(Gated(max_num_seqs=2, unseen=2), source, flush_s=60)
    h.engine.then = h.worker.stall
    h.worker.submit(route(2, "0", "1", "2"))
    h.until("the standstill", lambda: h.of(Activity))
    assert h.worker.alive(), "its process lives"
    assert {one.progress for one in h.of(Activity)} == {len(h.engine._made["0"]) - 2}
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
    with serving(FakeEngine(), source) as again:
        unfinished = [trajectory for trajectory, kept in source.kept.items() if kept.finish is None]
        again.worker.submit(route(2, *unfinished))
        again.until("the rest", lambda: len(again.of(Finished)) == len(unfinished))
    assert all(kept.finish is not None for kept in source.kept.values())


def test_a_stall_without_work_shows_with_the_first_work():
    with serving(FakeEngine()) as h:
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

    with serving(Failing()) as h:
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

    with serving(Uneven(max_num_seqs=1), MemorySource(prompts(4))) as h:
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
