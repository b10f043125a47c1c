"""A policy that answers what its contract forbids ends the run with one line, and the run can go on from there."""

from typing import Any

import pytest
from scripted import Scripted, of, policy, spec
from wrong_policies import Wrong, ended, goes_on, with_wrong

from tailrace import contracts as c


def placed(make):
    """An answer of the routing policy: the right one, with something wrong in it."""
    return lambda right, cycle: make(list(right), cycle) if len(right) else right


ROUTES = {
    "a replica that nobody knows": lambda right, cycle: [c.Placement(right[0].trajectory, "r9")],
    "a trajectory that nobody knows": lambda right, cycle: [c.Placement("77.0", "r0")],
    "the same trajectory twice": lambda right, cycle: [right[0], right[0]],
    "no placements at all": lambda right, cycle: None,
    "something else than placements": lambda right, cycle: [("0.0", "r0")],
}


@pytest.mark.parametrize("what", ROUTES)
def test_a_placement_that_is_forbidden_is_named(what):
    run, wrong = with_wrong("routing", "route", placed(ROUTES[what]))
    line = ended(run)
    assert line.startswith("routing policy wrong_policies.Wrong: route answered ")
    assert "expected" in line
    assert not of(c.Route, run.given)
    goes_on(run, wrong)


def test_a_placement_on_a_replica_that_pulls_is_forbidden():
    run, wrong = with_wrong(
        "routing", "route", placed(lambda right, cycle: [c.Placement(right[0].trajectory, "r1")]), run_to_the_end=False
    )
    run.go(c.Tick(), leave=(c.Pull,))
    run.go(c.Pulled("r0", 0))
    assert "expected a replica that is up, serves a version and is not pulling" in ended(run)
    goes_on(run, wrong)


def test_a_placement_that_admission_does_not_allow_is_forbidden():
    """The trainer is at version 1, and the policy starts a group on a replica that still serves version 0."""

    def one_more(right, cycle):
        if cycle.progress.version == 0:
            return right
        return [c.Placement(next(iter(cycle.pool[None])), "r0")]

    run, wrong = with_wrong("routing", "route", one_more, admission=policy("admission", "bounded", bound=0))
    assert "expected a version at which admission lets a group start: " in ended(run)
    goes_on(run, wrong)


def test_exact_work_goes_only_to_its_version_and_a_group_only_forward():
    """A trajectory that began under version 0 is placed on a replica that serves version 1, where versions do not mix."""

    def anywhere(right, cycle):
        waiting = [name for level, queue in cycle.pool.items() if level is not None for name in queue]
        return [c.Placement(waiting[0], "r1")] if waiting else right

    run, wrong = with_wrong("routing", "route", anywhere, run_to_the_end=False, replica_batch=8, buffer_groups=8)
    run.go(c.Tick(), leave=(c.Route,))
    run.catch_up("r1")
    first = [ref.trajectory for ref in run.left[1].trajectories]
    run.left.pop(1)
    run.go(*(c.Finished("r1", name, 3) for name in first), c.Snapshot("r1", 0, 0, 0, 4, 0, 99), leave=(c.Route,))
    assert run.view.published == 1
    run.down("replica", "r0", leave=("replica", c.Route))
    assert "expected a replica that serves version 0" in ended(run)
    goes_on(run, wrong)


SYNCS = {
    "nobody": lambda right, cycle: [c.Sync("r9")],
    "the same twice": lambda right, cycle: [*right, *right],
    "not a sequence": lambda right, cycle: 3,
    "something else": lambda right, cycle: ["r0"],
}


@pytest.mark.parametrize("what", SYNCS)
def test_a_pull_that_is_forbidden_is_named(what):
    run, wrong = with_wrong("sync", "pulls", lambda right, cycle: SYNCS[what](right, cycle) if right else right)
    line = ended(run)
    assert "sync policy " in line
    assert "pulls answered " in line
    assert not of(c.Pull, run.given)
    goes_on(run, wrong)


def test_a_replica_that_pulls_or_works_is_not_told_to_pull():
    run, wrong = with_wrong("sync", "pulls", lambda right, cycle: [*right, c.Sync("r0")], left=1, run_to_the_end=False)
    run.go(c.Tick(), leave=(c.Pull,))
    run.down("replica", "r1")
    assert "Sync(replica='r0'" in ended(run)
    goes_on(run, wrong)
    run, wrong = with_wrong(
        "sync", "pulls", lambda right, cycle: [c.Sync("r0")], run_to_the_end=False, batch_groups=1, buffer_groups=8
    )
    wrong.mended = True
    run.go(c.Tick(), leave=(c.Route,))
    wrong.mended = False
    run.go(c.Finished("r1", "1.0", 3), c.Finished("r1", "1.1", 3), leave=(c.Route,))
    assert "none with work where versions do not mix" in ended(run)


RELOCATIONS = {
    "from nobody": [c.Move("r9", "r0")],
    "to itself": [c.Move("r0", "r0")],
    "there and on": [c.Move("r0", "r1"), c.Move("r1", "r0")],
    "what does not run there": [c.Evict("r0", ("77.0",))],
    "of nobody": [c.Evict("r9", ())],
    "twice": [c.Evict("r0", ("0.0",)), c.Evict("r0", ("0.0",))],
    "something else": ["r0"],
}


@pytest.mark.parametrize("what", RELOCATIONS)
def test_a_move_that_is_forbidden_is_named(what):
    plan = Wrong(
        policy("relocation", "best-fit", roofline_batch=64, period_s=1.0), "plan", lambda *_: RELOCATIONS[what]
    )
    run = Scripted(spec(relocation=plan))
    run.go(c.Tick(), leave=(c.Route,))
    run.later(2.0, leave=(c.Route,))
    line = ended(run)
    assert "relocation policy " in line
    assert "plan answered " in line
    assert not of(c.Interrupt, run.given)
    goes_on(run, plan)


def test_exact_work_is_not_evicted_where_nobody_else_can_go_on_with_it():
    plan = Wrong(
        policy("relocation", "best-fit", roofline_batch=64, period_s=1.0), "plan", lambda *_: [c.Evict("r0", ("0.0",))]
    )
    run = Scripted(spec(relocation=plan, provisioning=policy("provisioning", "static", count=1)))
    run.go(c.Tick(), leave=(c.Route,))
    run.later(2.0, leave=(c.Route,))
    assert "exact ones if another can continue them" in ended(run)
    goes_on(run, plan)


@pytest.mark.parametrize(
    "launch",
    [c.Launch(-1, 2, 2), c.Launch(0, 2, 3), c.Launch(0, 0, 0), "the next one", 7],
    ids=["a prompt before the first", "more needed than there are", "nothing", "a word", "a number"],
)
def test_a_launch_that_makes_no_sense_is_named(launch):
    made = Wrong(
        policy("batching", "plain", samples=2), "open", lambda right, *_: Wrong(right, "next", lambda *_: launch)
    )
    run = Scripted(spec(batching=made))
    run.go(c.Tick())
    assert f"next answered {launch!r}" in ended(run)
    goes_on(run, run.controller.source)


def test_a_batch_that_is_split_wrongly_is_named():
    for parts in ([[0]], [[0, 1], [1]], [[0, 1], []], None, [0, 1]):
        run, wrong = with_wrong("training", "split", lambda right, groups, parts=parts: parts)
        assert f"split answered {parts!r}" in ended(run)
        goes_on(run, wrong)


def test_a_sampler_that_chooses_nonsense_is_named():
    for pick in (
        lambda right, candidates, count: [candidates[0].key] * (count + 1),
        lambda right, candidates, count: [77, 78],
        lambda right, candidates, count: right[:-1],
        lambda right, candidates, count: None,
    ):
        for training in (policy("training", "full-batch"), policy("training", "dynamic-batch", parts=2)):
            run, wrong = with_wrong("sampler", "pick", pick, training=training)
            line = ended(run)
            assert "sampler policy " in line
            assert "pick answered " in line
            goes_on(run, wrong)


def test_a_gate_that_consumes_nonsense_is_named():
    for answer in ([], [0, 0], [0, 77], None):
        gate = lambda right, *_, answer=answer: Wrong(right, "consume", lambda *_: answer)  # noqa: E731
        run = Scripted(spec(admission=Wrong(policy("admission", "inherent"), "gate", gate)))
        run.go(c.Tick())
        assert f"consume answered {answer!r}" in ended(run)
        goes_on(run, run.controller.gate)


@pytest.mark.parametrize("method", ["surplus", "expired", "delayed", "reset"])
def test_a_gate_that_names_groups_that_it_may_not_is_named(method):
    late = 1 if method == "reset" else 0  # the first one is at the beginning, when there are no groups
    for answer in ([77], ["0"], [0, 0]):
        made = lambda right, *_, answer=answer: Wrong(right, method, lambda *_: answer, late)  # noqa: E731
        admission = policy("admission", "bounded", patience_s=1.0)
        run = Scripted(spec(admission=Wrong(admission, "gate", made), sync=policy("sync", "interrupting")))
        run.go(c.Tick())
        assert f"admission gate policy wrong_policies.Wrong: {method} answered {answer!r}" in ended(run)
        goes_on(run, run.controller.gate)


def test_a_source_that_names_groups_that_it_may_not_is_named():
    batching = policy("batching", "tail-batching", prompts=2, samples=2)
    made = Wrong(batching, "open", lambda right, *_: Wrong(right, "surplus", lambda *_: [77]))
    admission = policy("admission", "on-policy")
    run = Scripted(spec(batching=made, admission=admission, buffer_groups=None, replica_batch=16))
    run.go(c.Tick())
    assert "batching source policy wrong_policies.Wrong: surplus answered [77]" in ended(run)


def test_a_gate_that_leaves_out_what_was_trained_on_already_is_named():
    def others(right, candidates, sampler):
        return [candidate.key for candidate in candidates][-2:]

    gate = Wrong(policy("admission", "inherent"), "gate", lambda right, *_: Wrong(right, "consume", others))
    training = policy("training", "dynamic-batch", parts=2)
    run = Scripted(spec(admission=gate, training=training, replica_batch=8, buffer_groups=12, steps=9))
    run.go(c.Tick(), leave=(c.Accumulate,))
    first = run.controller.trainer.accumulated[0]
    run.catch_up()
    assert f"expected all that was accumulated, [{first}]" in ended(run)


def test_a_gate_that_breaks_its_own_bound_is_named():
    class Loose:
        """Promises a bound of 0, and keeps none."""

        bound = 0

        def __init__(self, right):
            self.right = right

        def __getattr__(self, name):
            return getattr(self.right, name)

    made = Wrong(policy("admission", "inherent"), "gate", lambda right, *_: Loose(right))
    run = Scripted(spec(admission=made, replica_batch=8, buffer_groups=12))
    run.go(c.Tick())
    line = ended(run)
    assert "admission gate policy " in line
    assert "expected a staleness of at most 0" in line


def test_provisioning_that_stops_a_stranger_is_named():
    for plan in ([c.StopReplica("r9")], [c.StopReplica("0")], ["r0"], None):
        run, wrong = with_wrong("provisioning", "plan", lambda right, view, plan=plan: plan, left=2)
        assert "provisioning policy " in ended(run)
        assert f"plan answered {plan[0] if plan and plan != ['r0'] else plan!r}" in run.view.failure
        goes_on(run, wrong)


HALF: Any = 1.5


@pytest.mark.parametrize("action", [c.StartReplica(tp=0), c.StartReplica(tp=HALF), c.ResizeReplica("r0", HALF)])
def test_provisioning_that_wants_no_number_of_devices_is_named(action):
    run, _ = with_wrong("provisioning", "plan", lambda right, view: [action], left=1)
    assert f"plan answered {action!r:.100}" in ended(run)


def test_provisioning_that_leaves_no_replica_is_named():
    run, wrong = with_wrong("provisioning", "plan", lambda right, view: [])
    assert "expected at least one replica that is not stopping" in ended(run)
    goes_on(run, wrong)
    run, wrong = with_wrong(
        "provisioning",
        "plan",
        lambda right, view: [c.StopReplica(m.id) for m in view.of("replica") if m.health is not c.Health.STOPPING],
        left=3,
    )
    assert "expected at least one replica that is not stopping" in ended(run)


def test_recovery_that_evicts_the_last_is_named():
    for role in ("trainer", "data", "scorer", "relay"):
        run, wrong = with_wrong("recovery", "on_down", lambda *_: c.RecoveryAction.EVICT, run_to_the_end=False)
        run.go(c.Tick(), leave=(c.Step,))
        run.down(role)
        line = ended(run)
        assert "recovery policy " in line
        assert "on_down answered <RecoveryAction.EVICT: 'evict'>" in line
        assert f"{role} 0 on an unknown machine is down (killed), and no others do its work" in line
        goes_on(run, wrong)


def test_recovery_that_gives_up_a_machine_that_nobody_knows_is_named():
    for answer in (c.RecoveryAction.EVICT_MACHINE, "restart", None):
        run, wrong = with_wrong("recovery", "on_down", lambda *_, answer=answer: answer, run_to_the_end=False)
        run.go(c.Tick(), leave=(c.Step,))
        run.down("replica", "r0")
        assert f"on_down answered {answer!r}" in ended(run)
        goes_on(run, wrong)


def test_detection_that_suspects_a_stranger_is_named():
    stranger = c.Suspected("replica", "r9", c.Reason(c.Why.STILL, numbers={"still_s": 1.0, "limit_s": 0.5}))
    for answer in ([stranger], ["r0"], None):
        run, wrong = with_wrong("detection", "suspects", lambda *_, answer=answer: answer, run_to_the_end=False)
        run.go(c.Tick(), leave=(c.Route,))
        run.go(c.Activity("replica", "r0", "generating", 7, 40.0, 0.1))
        assert "suspects answered " in ended(run)
        goes_on(run, wrong)


def test_a_group_does_not_spread_to_older_weights_than_it_began_with():
    def spread(right, cycle):
        names = list(cycle.pool.get(None, ())) if cycle.replicas[0].version else []
        return [c.Placement(names[0], "r0"), c.Placement(names[1], "r1")] if names else right

    run, _ = with_wrong("routing", "route", spread, run_to_the_end=False, steps=9, batch_groups=1)
    run.go(c.Tick(), leave=(c.Route,))
    for _ in range(2):
        route = next(route for route in run.left if route.replica == "r0")
        run.left.remove(route)
        run.go(*run.answers(route), leave=(c.Route,))
    assert "expected a replica that serves version 2 or a newer one" in ended(run)
