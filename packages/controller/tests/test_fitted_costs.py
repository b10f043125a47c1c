"""The costs of a decoding step, fitted in the run to what its own replicas report."""

import math
import random

import pytest
from scripted import Scripted, policy, spec

from tailrace import contracts as c
from tailrace.repack import BestFit, MarginalThroughput, Migration, ThroughputModel

OWN = ThroughputModel(2e-7, 8e-3, 1e-4, 4e-3)  # turns compute-bound at 80
CAPACITY = 400_000
FITTED = {"routing": MarginalThroughput(), "relocation": Migration(), "fits_costs": True}


def _run(**changes):
    run = Scripted(spec(**{"sync": policy("sync", "when-useful"), **changes}))
    run.go(c.Tick(), leave=(c.Route,))
    return run


def _report(run, count, model=OWN, noise=0.0, seed=0):
    """Snapshots of replicas whose steps take as long as a model says, at many sizes."""
    numbers, replicas = random.Random(seed), run.controller.fleet.replicas
    for index in range(count):
        replica = ("r0", "r1")[index % 2]
        running, kv = numbers.randint(1, 200), numbers.random()
        took = model.step_latency_s(kv * CAPACITY, running) * (1 + numbers.uniform(-noise, noise))
        seq = replicas[replica].sent
        run.handle(c.Snapshot(replica, 0.0, 0, 0, 0, 0, seq))  # nothing is steady between this size and the last
        for _ in range(2):
            run.handle(c.Snapshot(replica, kv, running, 0, 0, 0, seq, running / took, CAPACITY))


def _wild(run, numbers):
    """Snapshots of a step that took as long as nothing explains."""
    running, kv, took = numbers.randint(1, 200), numbers.random(), math.exp(numbers.uniform(-9, 1))
    for _ in range(2):
        seq = run.controller.fleet.replicas["r0"].sent
        run.handle(c.Snapshot("r0", kv, running, 0, 0, 0, seq, running / took, CAPACITY))


def _costs(policy):
    return policy.k1, policy.k2, policy.k3, policy.k4


def test_policies_plan_with_what_the_run_measured_of_itself():
    run = _run(**FITTED)
    assert run.view.cost_model["source"] == "assumed"
    _report(run, 200)
    planned = run.controller.spec
    for found in (planned.routing, planned.relocation):
        assert _costs(found) == pytest.approx((OWN.k1, OWN.k2, OWN.k3, OWN.k4), rel=1e-3)
    told = run.view.cost_model
    assert told["source"] == "fitted"
    assert told["error"] < 1e-3
    assert told["samples"] >= 20
    assert told["k1"] == planned.routing.k1
    cycle = run.controller.coordinator._cycle()
    assert cycle.routing is planned.routing  # when-useful tries placements with it


def test_the_error_of_the_fit_is_told():
    run = _run(**FITTED)
    _report(run, 200, noise=0.2)
    assert 0.03 < run.view.cost_model["error"] < 0.2
    assert run.view.cost_model["source"] == "fitted"


def test_best_fits_limit_is_how_many_decode_with_a_negligible_increase_in_latency():
    """Laminar, section 5.2: a step takes at most a tenth longer than that of one trajectory."""
    run = _run(relocation=BestFit(), fits_costs=True)
    assert run.controller.spec.relocation.batch == 256
    _report(run, 200)
    limit = run.controller.spec.relocation.batch
    assert OWN.step_latency_s(0, limit) <= 1.1 * OWN.step_latency_s(0, 1) * (1 + 1e-3)
    assert OWN.step_latency_s(0, limit + 2) > 1.1 * OWN.step_latency_s(0, 1)
    assert BestFit(roofline_batch=7).with_costs(1e-7, 8e-3, 1e-4, 1e-3).batch == 7
    assert BestFit(k2=8e-3, k3=0.0, k4=0.0).batch == 256  # never compute-bound


@pytest.mark.parametrize("k2", [0.0, 5e-4, 2e-3, 8e-3])
@pytest.mark.parametrize("k4", [0.0, 1e-3, 3.05e-2])
def test_best_fits_limit_is_that_of_the_costs_also_where_one_trajectory_is_bound_by_computing(k2, k4):
    """The cost model that a fit finds on a CPU, where a step grows with every trajectory from the first one on."""
    model = ThroughputModel(0.0, k2, 1e-3, k4)
    limit, longest_s = BestFit(k2=k2, k3=1e-3, k4=k4).batch, 1.1 * model.step_latency_s(0, 1) * (1 + 1e-12)
    assert model.step_latency_s(0, limit) <= longest_s < model.step_latency_s(0, limit + 1)


def test_a_fit_that_is_far_off_is_told_and_not_planned_with():
    run = _run(**FITTED)
    before = _costs(run.controller.spec.routing)
    numbers = random.Random(1)
    for _ in range(150):
        _wild(run, numbers)
    assert _costs(run.controller.spec.routing) == before
    assert run.view.cost_model["source"] == "assumed"


def test_a_later_fit_that_is_far_off_is_not_told_in_place_of_the_one_that_is_planned_with():
    """Policies go on with the coefficients of the good one, so it is shown."""
    run = _run(**FITTED)
    _report(run, 200)
    numbers = random.Random(1)
    for _ in range(1500):
        _wild(run, numbers)
        if run.controller.costs.due_at > 1280:
            break
    told, routing = run.view.cost_model, run.controller.spec.routing
    assert run.controller.costs.due_at > 1280
    assert told["source"] == "fitted"
    assert [told[name] for name in ("k1", "k2", "k3", "k4")] == list(_costs(routing))


def test_coefficients_that_were_given_stay():
    given = MarginalThroughput(1e-7, 1e-3, 1e-4, 1e-3)
    run = _run(routing=given, relocation=Migration(1e-7, 1e-3, 1e-4, 1e-3))
    _report(run, 200)
    assert run.controller.spec.routing == given
    assert run.view.cost_model is None


def test_the_fit_follows_from_the_events_alone():
    """A controller that hears the same events, as in a replay, plans with the same coefficients and is in the same state."""
    first, second = _run(**FITTED), _run(**FITTED)
    for run in (first, second):
        _report(run, 333, noise=0.1, seed=5)
    assert first.controller.spec.routing == second.controller.spec.routing
    assert first.controller.state() == second.controller.state()


def test_what_a_replica_said_before_it_died_is_no_pair_with_what_its_successor_says():
    run = _run(**FITTED)
    _report(run, 2)
    assert "r0" in run.controller.costs.times.before
    run.down("replica", "r0", leave=(c.Route, "replica"))
    assert "r0" not in run.controller.costs.times.before


def test_what_is_kept_is_bounded_and_spread_over_the_run():
    run = _run(**FITTED)
    _report(run, 700)
    costs = run.controller.costs
    assert len(costs.samples) <= 96
    assert costs.seen == 700
    assert costs.every >= 8
