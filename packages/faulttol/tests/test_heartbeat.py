"""The monitor against a slow reference that keeps every beat, and one real silence after another."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.faulttol import HeartbeatError, HeartbeatMonitor, Silence

AFTER = 3
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
        for member, entries in self.history.items():
            heard = max(at for what, at in entries if what == "heard")
            told = [index for index, (what, _) in enumerate(entries) if what in ("told", "back")]
            last_told = entries[told[-1]] if told else ("back", None)
            heard_since = any(what == "heard" for what, _ in entries[told[-1] + 1 :]) if told else False
            silent = now - heard
            if last_told[0] == "told" and heard_since and silent < AFTER:
                entries.append(("back", now))
                news.append(Silence(member, 0.0))
            elif silent >= AFTER and (last_told[0] == "back" or heard_since or now - last_told[1] >= AFTER):
                entries.append(("told", now))
                news.append(Silence(member, silent))
        return news

    def silent_s(self, member, now):
        silent = now - max(at for what, at in self.history[member] if what == "heard")
        return silent if silent >= AFTER else 0.0


@settings(max_examples=400, deadline=None)
@given(actions)
def test_the_monitor_equals_the_reference(steps):
    monitor, reference, now = HeartbeatMonitor(AFTER), Reference(), 0
    for action, member, passed in steps:
        now += passed
        if action == "check":
            due = monitor.next_due_s()
            news = monitor.check(now)
            assert sorted(news, key=repr) == sorted(reference.check(now), key=repr)
            assert not news or (due is not None and due <= now)
        elif action == "forget":
            monitor.forget(member)
            reference.forget(member)
        else:
            getattr(monitor, action)(member, now)
            getattr(reference, action)(member, now)
        assert set(monitor.members) == set(reference.history)
        assert all(monitor.silent_s(each, now) == reference.silent_s(each, now) for each in monitor.members)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(0, 2.9), max_size=40))
def test_whoever_beats_in_time_is_never_told(gaps):
    monitor, now = HeartbeatMonitor(AFTER), 0.0
    monitor.expect("a", now)
    for gap in gaps:
        assert monitor.check(now + gap) == []
        now += gap
        monitor.beat("a", now)


def test_a_silence_is_told_again_while_it_lasts_and_its_end_once():
    monitor = HeartbeatMonitor(AFTER)
    monitor.expect("a", 0)
    assert monitor.check(2.9) == []
    assert monitor.check(3) == [Silence("a", 3)]
    assert monitor.check(5) == []
    assert monitor.check(6) == [Silence("a", 6)]
    assert monitor.beat("a", 7)
    assert monitor.check(8) == [Silence("a", 0.0)]
    assert monitor.check(9) == []
    assert monitor.check(10) == [Silence("a", 3)]


def test_who_is_forgotten_is_not_told_and_its_late_beats_neither():
    monitor = HeartbeatMonitor(AFTER)
    monitor.expect("a", 0)
    assert monitor.check(3) == [Silence("a", 3)]
    monitor.beat("a", 4)
    monitor.forget("a")
    assert not monitor.beat("a", 5)
    assert monitor.check(20) == []
    monitor.expect("a", 22)
    assert monitor.check(25) == [Silence("a", 3)]


def test_an_old_beat_is_no_news():
    monitor = HeartbeatMonitor(AFTER)
    monitor.expect("a", 5)
    monitor.beat("a", 1)
    assert monitor.check(8) == [Silence("a", 3)]


@pytest.mark.parametrize("limit", [0, -1, float("inf"), float("nan")])
def test_limits_that_make_no_sense(limit):
    with pytest.raises(HeartbeatError, match="after_s"):
        HeartbeatMonitor(limit)
