"""The monitor against a slow reference that keeps every beat, and one real silence after another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.faulttol import Death, HeartbeatError, HeartbeatMonitor, Suspicion

SUSPECT, DOWN = 3, 10
members = st.sampled_from(["a", "b", "c"])
actions = st.lists(
    st.tuples(st.sampled_from(["expect", "beat", "beat", "forget", "check", "check"]), members, st.integers(0, 6)),
    max_size=60,
)


class Reference:
    """Keeps the whole history of each watch, and reads the answer off it."""

    def __init__(self):
        self.history = {}

    def expect(self, member, now):
        self.history[member] = [("heard", now)]

    def beat(self, member, now):
        if member in self.history:
            self.history[member].append(("heard", now))

    def forget(self, member):
        self.history.pop(member, None)

    def check(self, now):
        news = []
        for member in list(self.history):
            entries = self.history[member]
            last = max(index for index, (what, _) in enumerate(entries) if what == "heard")
            silent = now - entries[last][1]
            if silent >= DOWN:
                del self.history[member]
                news.append(Death(member, silent))
            elif silent >= SUSPECT and not any(what == "suspected" for what, _ in entries[last:]):
                entries.append(("suspected", now))
                news.append(Suspicion(member, silent))
        return news


@settings(max_examples=400, deadline=None)
@given(actions)
def test_the_monitor_equals_the_reference(steps):
    monitor, reference, now = HeartbeatMonitor(SUSPECT, DOWN), Reference(), 0
    for action, member, passed in steps:
        now += passed
        if action == "check":
            due = monitor.next_due_s()
            news = monitor.check(now)
            assert sorted(news, key=repr) == sorted(reference.check(now), key=repr)
            assert bool(news) == (due is not None and due <= now)
        elif action == "forget":
            monitor.forget(member)
            reference.forget(member)
        else:
            getattr(monitor, action)(member, now)
            getattr(reference, action)(member, now)
        assert set(monitor.members) == set(reference.history)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 2.9), max_size=40))
def test_whoever_beats_in_time_is_never_suspected(gaps):
    monitor, now = HeartbeatMonitor(SUSPECT, DOWN), 0.0
    monitor.expect("a", now)
    for gap in gaps:
        assert monitor.check(now + gap) == []
        now += gap
        monitor.beat("a", now)


def test_one_silence_is_told_once():
    monitor = HeartbeatMonitor(SUSPECT, DOWN)
    monitor.expect("a", 0)
    assert monitor.check(2.9) == []
    assert monitor.check(3) == [Suspicion("a", 3)]
    assert monitor.check(9) == []
    assert monitor.check(10) == [Death("a", 10)]
    assert monitor.check(11) == []


def test_a_beat_clears_the_suspicion_and_the_next_silence_is_told_again():
    monitor = HeartbeatMonitor(SUSPECT, DOWN)
    monitor.expect("a", 0)
    assert monitor.check(4) == [Suspicion("a", 4)]
    assert monitor.beat("a", 5)
    assert monitor.check(7) == []
    assert monitor.check(8) == [Suspicion("a", 3)]


def test_a_late_beat_does_not_revive_the_dead():
    monitor = HeartbeatMonitor(SUSPECT, DOWN)
    monitor.expect("a", 0)
    assert monitor.check(20) == [Death("a", 20)]
    assert not monitor.beat("a", 21)
    assert monitor.members == ()
    monitor.expect("a", 22)
    assert monitor.check(25) == [Suspicion("a", 3)]


def test_an_old_beat_is_no_news():
    monitor = HeartbeatMonitor(SUSPECT, DOWN)
    monitor.expect("a", 5)
    monitor.beat("a", 1)
    assert monitor.check(8) == [Suspicion("a", 3)]


@pytest.mark.parametrize("limits", [(0, 1), (2, 1), (1, float("inf")), (float("nan"), 1), (-1, 1)])
def test_limits_that_make_no_sense(limits):
    with pytest.raises(HeartbeatError, match="suspect_after_s"):
        HeartbeatMonitor(*limits)
