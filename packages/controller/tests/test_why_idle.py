"""Why a member that is up has nothing to do, one reason after the other, and what the view counts meanwhile."""

import dataclasses

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c


class Never(c.SyncPolicy):
    """Pulls the first version and no other; `mixes` says whether versions may be mixed."""

    def __init__(self, first=True, mixes=False):
        self.first, self.mixes = first, mixes

    @property
    def mixes_versions(self):
        return self.mixes

    def pulls(self, cycle):
        return [
            c.Sync(view.replica, c.CHOSEN)
            for view in cycle.replicas
            if self.first and view.version is None and not view.pulling and cycle.progress.published >= 0
        ]

    def accepts(self, replica, progress):
        return True


def why(run, role="replica", id_="r0"):
    reason = run.view.why_idle(role, id_)
    return None if reason is None else (reason.why, dict(reason.numbers))


def one(**changes):
    return Scripted(spec(provisioning=policy("provisioning", "static", count=1), **changes))


def test_before_the_first_version_is_published():
    run = one()
    run.go(c.Tick(), leave=(c.Publish,))
    assert why(run) == (c.Why.UNPUBLISHED, {})
    assert why(run, "trainer", "0") == (c.Why.FIRST_BATCH, {})
    assert (run.view.published, run.view.serves("r0"), run.view.on_its_way) == (-1, None, 0)


def test_one_that_is_not_up_or_only_answers_waits_for_nothing():
    run = one()
    run.go(c.Tick(), leave=("replica", "trainer", c.Publish))
    assert [why(run, role, id_) for role, id_ in run.view.members()] == [None] * 5
    run.catch_up("replica", leave=(c.Publish,))
    assert [role for role, id_ in run.view.members() if why(run, role, id_)] == ["replica"]
    assert why(run, "replica", "r9") is None


def test_one_that_pulls_or_generates_has_something_to_do():
    run = one()
    run.go(c.Tick(), leave=(c.Pull,))
    assert why(run) is None
    run.catch_up(leave=(c.Route,))
    assert why(run) is None
    assert (run.view.held("r0"), run.view.on_replicas, run.view.generates) == (4, 4, True)
    assert run.view.only_trains("r0")
    assert run.view.held("r9") == 0
    assert not run.view.only_trains("r9")


@pytest.mark.parametrize("relays", [True, False])
def test_without_weights_it_is_not_told_to_pull_or_there_is_no_relay(relays):
    run = one(sync=Never(first=False))
    run.go(c.Tick())
    if not relays:
        run.down("relay", leave=("relay",))
    assert why(run) == ((c.Why.NOT_TOLD, {"version": 0.0}) if relays else (c.Why.NO_RELAY, {}))


def test_while_the_rest_of_what_is_open_is_scored():
    run = one()
    run.go(c.Tick(), leave=(c.Score,))
    assert why(run) == (c.Why.SCORING, {})
    assert why(run, "trainer", "0") == (c.Why.SCORING, {})
    assert not run.view.generates
    assert run.view.unsettled() == [10] * run.view.generating * 2


def test_once_all_is_admitted():
    run = one()
    run.go(c.Tick(), leave=(c.Step,))
    assert run.view.counts.admitted == 6
    assert why(run) == (c.Why.ADMITTED, {})
    run.catch_up()
    assert why(run, "trainer", "0") == (c.Why.DONE, {})


def test_while_the_buffer_is_full():
    run = one(steps=50)
    run.go(c.Tick(), leave=(c.Step,))
    assert run.view.buffered == 6
    assert why(run) == (c.Why.BUFFER_FULL, {"open": 6.0, "limit": 6.0})
    assert why(run, "trainer", "0") is None


@pytest.mark.parametrize("trains", [True, False])
def test_while_admission_has_no_room(trains):
    admission = policy("admission", "in-flight-cap", bound=1) if trains else policy("admission", "bounded", bound=0)
    run = Scripted(spec(steps=50, buffer_groups=None, replica_batch=2, admission=admission))
    run.go(c.Tick(), leave=(c.Step,) if trains else (c.Route,))
    if not trains:  # the other one generates what is left
        mine = [route for route in of(c.Route, run.left) if route.replica == "r0"]
        run.left = [command for command in run.left if command not in mine]
        run.go(*(event for route in mine for event in run.answers(route)), leave=(c.Route,))
        assert run.view.held("r1")
        assert why(run, "trainer", "0") == (c.Why.FIRST_BATCH, {})
    found, numbers = why(run)
    assert found is (c.Why.POOL_EMPTY if trains else c.Why.ELSEWHERE)
    assert numbers["open"] >= numbers["limit"]
    assert numbers["open"] == run.view.started + run.view.buffered


@pytest.mark.parametrize("behind", [True, False])
def test_where_versions_do_not_mix_it_is_not_told_of_the_newest_or_admission_wants_a_newer(behind):
    run = one(steps=50, admission=policy("admission", "on-policy"), sync=Never())
    run.go(c.Tick(), leave=() if behind else (c.Step,))
    if not behind:
        run.catch_up(leave=(c.Step, c.Publish))
    assert run.view.version == 1
    assert run.view.published == (1 if behind else 0)
    assert why(run) == ((c.Why.NOT_TOLD, {"version": 1.0}) if behind else (c.Why.NOT_ADMITTED, {"version": 0.0}))


def test_a_trainer_waits_for_the_rest_of_its_batch():
    run = one(batch_groups=3, steps=50, replica_batch=6)
    run.go(c.Tick(), leave=(c.Step,))
    run.catch_up(c.Step, leave=(c.Step, c.Route))
    while run.view.making is not None:
        run.catch_up(c.Step, leave=(c.Step, c.Route))
    assert run.view.step > 0
    assert why(run, "trainer", "0") == (c.Why.NO_BATCH, {"buffered": float(run.view.buffered), "needed": 3.0})


# ---- the view ---------------------------------------------------------------------------------------------------------


def test_the_view_says_what_each_member_and_trajectory_does():
    run = one()
    run.go(c.Tick(), leave=(c.Route,))
    name = next(iter(run.controller.ledger.trajectories))
    assert run.view.waits(name) == "running on r0, version 0"
    assert run.view.waits("99.9") is None
    assert run.view.trajectory("99.9") is None
    row = run.view.trajectory(name)
    assert (row.version, row.replica, row.environment, row.answered, row.finished) == (0, "r0", None, 0, False)
    assert (row.group, row.consumed_for) == ("generating", 0)
    member = run.view.member("replica", "r0")
    assert (member.health, member.version, member.held, member.evaluating) == (c.Health.UP, 0, 4, 0)
    assert run.view.member("scorer", "0").health is c.Health.UP
    assert run.view.member("replica", "r9") is None
    assert (run.view.pooled, run.view.pooled_started) == (8, 0)  # four groups of two that have not started
    assert (run.view.started, run.view.generating, run.view.open_groups) == (2, 6, 6)
    run.catch_up(leave=(c.Score,))
    assert run.view.waits(name) == "done, version 0"
    assert run.view.trajectory(name).finished
    run.catch_up()
    assert run.view.finished
    assert (run.view.lost_groups, run.view.open_groups, run.view.contradictions) == (0, 0, 0)


def test_one_that_is_given_up_is_seen_as_down():
    run = Scripted(spec(recovery=policy("recovery", "isolate", max_restarts=0)))
    run.go(c.Tick(), leave=(c.Route,))
    run.down("replica", "r0", leave=(c.Route,))
    assert run.view.member("replica", "r0").health is c.Health.DOWN
    assert run.view.member("replica", "r7") is None
    assert [(row["role"], row["id"]) for row in run.view.given_up] == [("replica", "r0")]


def test_snapshots_that_contradict_are_counted():
    run = one()
    run.go(c.Tick(), leave=(c.Route,))
    route = of(c.Route, run.left)[0]
    run.go(c.Snapshot("r0", 0.0, 0, 0, 0, 7, route.seq), leave=(c.Route,))
    assert run.view.contradictions == 1


def test_one_replica_that_generates_is_enough_to_say_that_there_is_generation():
    run = Scripted(spec())
    run.go(c.Tick(), leave=(c.Route,))
    run.left = [route for route in run.left if route.replica == "r1"]
    run.down("replica", "r0", leave=("replica",))
    assert [run.view.held(name) for name in ("r0", "r1")] == [0, 4]
    assert run.view.generates


@dataclasses.dataclass(frozen=True)
class Spares(type(policy("routing", "least-loaded"))):
    """Routing that gives replicas no work from a moment on that the test sets."""

    spared: list = dataclasses.field(default_factory=list, compare=False)

    def route(self, cycle):
        return super().route(
            dataclasses.replace(cycle, replicas=[view for view in cycle.replicas if view.replica not in self.spared])
        )


@pytest.mark.parametrize("newer", [True, False])
def test_where_routing_gives_it_nothing_of_what_has_started_and_waits(newer):
    """The most groups that may be are open, but that is not why: some of them wait."""
    routing = Spares()
    run = Scripted(spec(steps=50, buffer_groups=4, routing=routing, sync=Never(mixes=True)))
    run.go(c.Tick(), leave=(c.Route,))
    routing.spared.extend(["r0", "r1"])
    run.down("replica", "r0", leave=(c.Route,))
    assert run.view.pooled_started == 4
    if newer:
        run.controller.fleet.replicas["r0"].version = -1  # it serves none at which what waits may go on
        assert why(run) == (c.Why.NO_USE, {"version": 0.0})
    else:
        assert why(run) == (c.Why.HELD_BACK, {})


@pytest.mark.parametrize(
    ("admission", "ahead", "expected"),
    [
        (policy("admission", "bounded", bound=0), True, (c.Why.NOT_ADMITTED, {"version": 0.0})),
        (policy("admission", "bounded", bound=0), False, (c.Why.HELD_BACK, {})),
        (policy("admission", "inherent"), False, (c.Why.NOT_ADMITTED, {"version": 0.0})),
    ],
)
def test_where_versions_mix_admission_wants_a_newer_one_or_routing_holds_back(admission, ahead, expected):
    routing = Spares()
    run = one(steps=50, admission=admission, routing=routing, sync=Never(mixes=True), buffer_groups=9, replica_batch=8)
    if not ahead:
        routing.spared.append("r0")
    run.go(c.Tick(), leave=(c.Step,))
    run.catch_up(c.Step, leave=(c.Step, c.Publish))
    assert (run.view.version, run.view.published) == (int(ahead), 0)
    assert why(run) == expected
