"""An engine that stands still is told of, by another thread than the one that is stuck in it; waiting for others is not."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import (
    Activity,
)
from tailrace.rollout.standstill import GENERATING, IDLE, PULLING, Standstill

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
