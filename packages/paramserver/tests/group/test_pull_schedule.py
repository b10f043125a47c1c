import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.paramserver import VersionNotYet
from tailrace.paramserver.group.pull_schedule import Assign, Expire, PullSchedule

HELD = frozenset({7})
FAR = 1e9


class Watched(PullSchedule):
    """Checks the invariants after every step."""

    def check(self):
        assigned = self.assignments
        assert len(set(assigned.values())) == len(assigned), "two pullers on one source"
        assert all(puller != source for puller, source in assigned.items())
        assert not set(assigned) & set(self.waiting)


def rounds(schedule, pullers):
    """Everybody asks at once, every pull takes one round. The pullers served in each round."""
    for puller in pullers:
        schedule.request(puller, 7, FAR)
        schedule.check()
    served = []
    while assigned := schedule.assignments:
        assert len(served) < 100
        served.append(sorted(assigned))
        for puller in assigned:
            schedule.holds(puller, HELD)
            schedule.check()
    assert not schedule.waiting
    return served


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 31, 64, 127])
def test_pullers_that_are_done_serve_so_the_rounds_are_logarithmic(count):
    schedule = Watched()
    schedule.holds("s", HELD)
    served = rounds(schedule, [f"p{index:03}" for index in range(count)])
    assert len(served) == count.bit_length()  # ceil(log2(count + 1)): 2, 4, 8 ... nodes hold it
    assert sum(map(len, served)) == count


def test_waiting_pullers_are_served_in_order():
    schedule = Watched()
    schedule.holds("s", HELD)
    assert schedule.request("c", 7, FAR) == [Assign("c", 7, "s")]
    assert schedule.request("b", 7, FAR) == schedule.request("a", 7, FAR) == []
    assert schedule.waiting == ("b", "a")
    assert schedule.holds("c", HELD) == [Assign("b", 7, "c"), Assign("a", 7, "s")]


def test_a_source_that_dies_is_replaced_and_its_puller_comes_first():
    schedule = Watched()
    schedule.holds("s", HELD)
    schedule.holds("t", HELD)
    assert [schedule.request(name, 7, FAR) for name in "abc"] == [[Assign("a", 7, "s")], [Assign("b", 7, "t")], []]
    assert schedule.gone("s") == []
    assert schedule.waiting == ("a", "c")
    assert schedule.holds("b", HELD) == [Assign("a", 7, "b"), Assign("c", 7, "t")]


def test_sources_that_fail_but_live_are_tried_once_each():
    schedule = Watched()
    schedule.holds("s", HELD)
    schedule.request("a", 7, FAR)
    schedule.holds("t", HELD)
    assert schedule.failed("a") == [Assign("a", 7, "t")]
    schedule.request("b", 7, FAR)
    (ended,) = schedule.failed("a")
    assert (ended.puller, ended.version) == ("a", 7)
    assert "none of s, t" in str(ended.error)
    assert schedule.assignments == {"b": "s"}
    assert schedule.failed("a") == []
    assert schedule.request("a", 7, FAR) == [Assign("a", 7, "t")]  # a new pull tries all again


def test_one_receiver_into_a_site_and_then_neighbours():
    schedule = Watched(dict.fromkeys("xyz", "far"))
    schedule.holds("s", HELD)
    schedule.holds("t", HELD)
    assert schedule.request("x", 7, FAR) == [Assign("x", 7, "s")]
    assert schedule.request("y", 7, FAR) == schedule.request("z", 7, FAR) == []  # t is free, but not near
    assert schedule.holds("x", HELD) == [Assign("y", 7, "x")]
    assert schedule.holds("y", HELD) == [Assign("z", 7, "x")]


def test_a_deadline_is_a_typed_error_and_frees_the_source():
    schedule = Watched()
    schedule.holds("s", HELD)
    schedule.request("a", 7, 5.0)
    schedule.request("b", 7, 9.0)
    schedule.request("c", 8, 5.0)
    assert schedule.expire(4.9) == []
    first, second, third = schedule.expire(5.0)
    assert isinstance(first, Expire)
    assert isinstance(first.error, VersionNotYet)
    assert (first.puller, second.puller, third) == ("a", "c", Assign("b", 7, "s"))
    assert "pulled from s" in str(first.error)
    assert "held by no living source" in str(second.error)


def test_asking_again_changes_nothing_but_the_deadline():
    schedule = Watched()
    schedule.holds("s", HELD)
    assert schedule.request("a", 7, 5.0) == [Assign("a", 7, "s")]
    assert schedule.request("a", 7, 8.0) == []
    assert schedule.expire(6.0) == []
    assert schedule.request("s", 7, 8.0) == []  # it has it
    assert "s" not in schedule.waiting


NAMES = [f"n{index}" for index in range(8)]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from(NAMES), st.integers(1, 2)),
        st.tuples(st.just("hold"), st.sampled_from(NAMES), st.sets(st.integers(1, 2))),
        st.tuples(st.just("gone"), st.sampled_from(NAMES), st.none()),
        st.tuples(st.just("failed"), st.sampled_from(NAMES), st.none()),
        st.tuples(st.just("expire"), st.integers(0, 30), st.none()),
    ),
    max_size=40,
)


def run(steps, sites):
    schedule, log, holders = Watched(sites), [], {}
    for step, (kind, who, what) in enumerate(steps):
        if kind == "ask":
            log += schedule.request(who, what, float(step + 10))
        elif kind == "hold":
            holders[who] = frozenset(what)
            log += schedule.holds(who, frozenset(what))
        elif kind == "gone":
            holders.pop(who, None)
            log += schedule.gone(who)
        elif kind == "failed":
            log += schedule.failed(who)
        else:
            log += schedule.expire(float(who))
        schedule.check()
    return schedule, log, holders


@settings(max_examples=300, deadline=None)
@given(STEPS, st.fixed_dictionaries({name: st.sampled_from(["", "far"]) for name in NAMES}))
def test_everyone_is_served_while_a_source_lives(steps, sites):
    schedule, log, holders = run(steps, sites)
    assert [str(entry) for entry in run(steps, sites)[1]] == [str(entry) for entry in log]  # deterministic
    for _ in range(2 * len(NAMES) + 1):  # every pull that is under way succeeds
        for puller in schedule.assignments:
            wanted = schedule.version_of(puller)
            holders[puller] = holders.get(puller, frozenset()) | {wanted}
            schedule.holds(puller, holders[puller])
            schedule.check()
    held = frozenset().union(*holders.values())
    assert all(schedule.version_of(puller) not in held for puller in schedule.waiting)
    assert not schedule.assignments


def test_a_source_that_failed_is_tried_again_when_all_others_are_gone():
    schedule = Watched()
    schedule.holds("s", HELD)
    schedule.request("a", 7, 50.0)
    schedule.holds("t", HELD)
    assert schedule.failed("a") == [Assign("a", 7, "t")]
    assert schedule.gone("t") == [Assign("a", 7, "s")]
    (ended,) = schedule.failed("a")  # and once more only
    assert isinstance(ended.error, VersionNotYet)
