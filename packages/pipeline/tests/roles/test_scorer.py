import dataclasses
import threading

import pytest

from tailrace.contracts import Abort, Activity, Score, Scored, ScoringFailed, Step
from tailrace.pipeline.roles.scorer import ScorerRole, ScorerSettings
from tailrace.reward import ScoreItem
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.doors import Ready
from tailrace.runtime.executor.seam import MemberDeadError, MemberStart


class Unscored:
    """Says `right` for each trajectory, unless its name says otherwise. It may be held up."""

    def __init__(self):
        self.asked, self.rewards = [], {}
        self.go = threading.Event()
        self.go.set()
        self.reached = threading.Event()

    def to_score(self, names):
        self.asked.append(list(names))
        self.reached.set()
        assert self.go.wait(30)
        kept = [name for name in names if not name.startswith("gone")]
        verifiers = {"broken": "no-such-verifier"}
        return [ScoreItem(name, name.split("-")[0], "right", verifiers.get(name, "exact")) for name in kept]

    def set_rewards(self, rewards):
        self.rewards |= rewards


def test_it_tells_its_sandbox_as_soon_as_it_is_up():
    role = ScorerRole(ScorerSettings(["exact", "code"]), MemberStart(store=Unscored()))
    try:
        (event,) = role.events(5.0)
        assert event == Activity("scorer", "0", role._scheduler.sandbox)
        assert event.phase
    finally:
        role.close()


def untimed(events):
    return [dataclasses.replace(event, seconds=0.0) if isinstance(event, Scored) else event for event in events]


@pytest.fixture
def data():
    return Unscored()


@pytest.fixture
def make(caller, data):
    roles = []

    def start(data_s=180.0):
        caller.role = data
        roles.append(ScorerRole(ScorerSettings(["exact"]), MemberStart(store=caller, data_s=data_s)))
        return roles[-1]

    yield start
    for role in roles:
        role.close()


def test_outcomes_name_their_command(make, data, gather):
    role = make()
    assert role.ready() == Ready()
    role.submit([Score(1, ("right", "wrong")), Score(2, ("broken", "gone"))])
    events = gather(role, lambda events: len(events) == 3, "three outcomes")
    assert [event for event in untimed(events) if isinstance(event, Scored)] == [
        Scored("right", 1.0, answers=1),
        Scored("wrong", 0.0, answers=1),
    ]
    (failed,) = [event for event in events if isinstance(event, ScoringFailed)]
    assert (failed.trajectory, failed.answers) == ("broken", 2)
    assert "no-such-verifier" in failed.reason
    assert data.rewards == {"right": 1.0, "wrong": 0.0}  # those that broke have none


def test_what_waits_is_forgotten_and_what_is_under_way_is_not_told(make, data, gather):
    role = make()
    data.go.clear()
    role.submit([Score(1, ("right-1", "right-2"))])
    assert data.reached.wait(30)
    role.submit([Score(2, ("right-3", "right-4"))])
    role.submit([Abort(3, ("right-1", "right-3", "unknown"))])
    role.submit([Score(4, ("right-3",))])  # begun anew, and finished again
    data.go.set()
    events = gather(role, lambda events: len(events) == 3, "three outcomes")
    assert {(event.trajectory, event.answers) for event in events} == {("right-2", 1), ("right-4", 2), ("right-3", 4)}
    assert sorted(data.rewards) == ["right-2", "right-3", "right-4"]


def test_outcomes_come_before_all_is_verified(make, data, gather):
    role = make()
    names = tuple(f"right-{number}" for number in range(150))
    role.submit([Score(1, names)])
    gather(role, lambda events: len(events) == 150, "all outcomes")
    assert [len(asked) for asked in data.asked] == [128, 22]


def test_outcomes_that_are_stored_together_are_told_together(make, data, gather):
    role, stored, told = make(), [], []
    data.set_rewards, put = lambda rewards: stored.append([*rewards]), role._loop.queue.put
    role._loop.queue.put = lambda *events: (told.append([event.trajectory for event in events]), put(*events))
    role.submit([Score(1, tuple(f"right-{number}" for number in range(64)))])
    gather(role, lambda events: len(events) == 64, "all outcomes")
    assert told == stored


def test_a_data_role_that_comes_back_in_time_is_waited_for(make, caller, data, gather):
    role = make(data_s=20.0)
    caller.role = None
    role.submit([Score(1, ("right",))])
    assert role.events(0.3) == []
    caller.role = data
    assert untimed(gather(role, lambda events: events, "an outcome")) == [Scored("right", 1.0, answers=1)]


def test_a_data_role_that_is_gone_is_not_the_verifiers_fault(make, caller, gather):
    role = make(data_s=0.2)
    caller.role = None
    role.submit([Score(1, ("right", "wrong"))])
    with pytest.raises(MemberDeadError):
        gather(role, lambda events: events, "an outcome")


def test_another_controller_hears_nothing_of_the_last_one(make, data, gather):
    role = make()
    data.go.clear()
    role.submit([Score(1, ("right-1", "right-2"))])
    assert data.reached.wait(30)
    role.adopt()
    role.submit([Score(1, ("right-3",))])
    data.go.set()
    assert untimed(gather(role, lambda events: events, "an outcome")) == [Scored("right-3", 1.0, answers=1)]


def test_a_command_of_another_role_is_refused(make):
    with pytest.raises(RoleError, match="got Step 9"):
        make().submit([Step(9, 1, ())])
