"""Faults are read strictly and are due exactly once."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.faulttol import STRUCK_ROLES, Fault, FaultError, FaultKind, FaultSchedule, parse_fault
from tailrace.faulttol.injection import PHASES

KILL, HANG, STALL, RAISE = FaultKind

whens = st.one_of(
    st.fixed_dictionaries({"at_s": st.integers(0, 1000).map(lambda number: number / 8)}),
    st.fixed_dictionaries({"at_step": st.integers(0, 1000)}),
)


@st.composite
def faults(draw, whens=whens):
    kind, when = draw(st.sampled_from(FaultKind)), draw(whens)
    role = "replica" if kind is STALL else draw(st.sampled_from(STRUCK_ROLES))
    phase = "" if "every" in when else draw(st.sampled_from(("", *PHASES.get(role, ()))))
    member = draw(st.none() | st.integers(0, 9).map(str) | st.just("replica-3"))
    return Fault(kind, role, member, **when, phase=phase)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("replica@60s", Fault(KILL, "replica", at_s=60.0)),
        ("replica:1@60s", Fault(KILL, "replica", "1", at_s=60.0)),
        ("trainer@step20", Fault(KILL, "trainer", at_step=20)),
        ("relay@30s", Fault(KILL, "relay", at_s=30.0)),
        ("hang:replica@1.5s", Fault(HANG, "replica", at_s=1.5)),
        ("stall:replica@60s", Fault(STALL, "replica", at_s=60.0)),
        ("stall:replica:2@step3", Fault(STALL, "replica", "2", at_step=3)),
        (" kill:scorer:s-0@step0 ", Fault(KILL, "scorer", "s-0", at_step=0)),
        ("hang:trainer@step9:backward", Fault(HANG, "trainer", at_step=9, phase="backward")),
        ("raise:replica:1@2.5s:pull", Fault(RAISE, "replica", "1", at_s=2.5, phase="pull")),
        ("environment:0.worker@step1:tool", Fault(KILL, "environment", "0.worker", at_step=1, phase="tool")),
        ("data@every10", Fault(KILL, "data", every=10)),
        ("controller@step3", Fault(KILL, "controller", at_step=3)),
        ("machine:m1@60s", Fault(KILL, "machine", "m1", at_s=60.0)),
    ],
)
def test_parse(text, fault):
    assert parse_fault(text) == fault


@given(faults(whens | st.fixed_dictionaries({"every": st.integers(1, 99)})))
def test_a_fault_is_read_back_as_it_is_written(fault):
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize(
    "text", ["", "replica", "replica@", "replica@60", "replica@-1s", "replica@1e3s", "trainer@step", "trainer@step1.5",
             "burn:replica@1s", "stall:@1s", "stall:hang:replica@1s",
             "replica:@1s", "replica:1:2@1s", "replica@60s x3", "replica@٣s", "data@every", "data@every0", "data@every1.5",
             "trainer@step3:", "trainer@step3:decode", "replica@1s:tool", "data@1s:fetch", "trainer@every3:fetch",
             "raise:environment:worker@1s", "controller@1s:fetch", f"replica@{'9' * 400}s",
             pytest.param(f"trainer@step{'9' * 5000}", id="many digits"), pytest.param(f"data@every{'9' * 5000}", id="many")]
)  # fmt: skip
def test_what_is_not_a_fault(text):
    with pytest.raises(FaultError, match="expected") as caught:
        parse_fault(text)
    assert "\n" not in str(caught.value)


def test_an_unknown_role_names_the_known_ones():
    with pytest.raises(FaultError, match=r"'replicas'.*expected one of replica, relay"):
        parse_fault("replicas@1s")


@pytest.mark.parametrize("role", [role for role in STRUCK_ROLES if role != "replica"])
def test_only_an_engine_stalls(role):
    with pytest.raises(FaultError, match=f"'stall:{role}:1@3s', expected stall:replica") as caught:
        parse_fault(f"stall:{role}:1@3s")
    assert "\n" not in str(caught.value)
    with pytest.raises(FaultError, match="only a replica"):
        Fault(STALL, role, at_step=3)
    assert parse_fault(f"hang:{role}:1@3s").kind is HANG


@pytest.mark.parametrize(
    "when", [{}, {"at_s": 1.0, "at_step": 1}, {"at_s": -1.0}, {"at_step": -1}, {"at_s": 1.0, "every": 2}, {"every": 0}]
)
def test_a_fault_has_one_time(when):
    with pytest.raises(ValueError, match="at_step"):
        Fault(KILL, "replica", **when)


@pytest.mark.parametrize(("member", "environment"), [(None, None), ("0", None), ("worker", ""), ("1.worker", "1")])
def test_a_worker_of_an_environment_has_a_name(member, environment):
    assert Fault(KILL, "environment", member, at_s=0.0).worker == environment
    assert Fault(KILL, "replica", member, at_s=0.0).worker is None


@given(st.lists(faults(), max_size=12), st.lists(st.tuples(st.floats(0, 60), st.integers(0, 300)), max_size=20))
def test_each_fault_is_due_once_and_not_before_its_time(scheduled, passed):
    schedule, now, step, seen = FaultSchedule(scheduled), 0.0, 0, []
    for seconds, steps in passed:
        now, step = now + seconds, step + steps
        due = schedule.due(now, step)
        assert all(fault.at_s <= now if fault.at_s is not None else fault.at_step <= step for fault in due)
        seen += due
    reached = [f for f in scheduled if passed and (f.at_s <= now if f.at_s is not None else f.at_step <= step)]
    assert sorted(map(str, seen)) == sorted(map(str, reached))
    assert sorted(map(str, [*seen, *schedule.pending])) == sorted(map(str, scheduled))


def test_further_faults_without_end_are_due_beside_the_others():
    further = (Fault(KILL, "relay", at_s=float(second)) for second in itertools.count(2, 2))
    schedule = FaultSchedule([Fault(HANG, "data", at_step=1)], further)
    assert list(map(str, schedule.due(5.0, 1))) == ["hang:data@step1", "relay@2s", "relay@4s"]
    assert list(map(str, schedule.pending)) == ["relay@6s"]
    assert schedule.due(5.9, 9) == []
    assert list(map(str, schedule.due(8.0, 9))) == ["relay@6s", "relay@8s"]
