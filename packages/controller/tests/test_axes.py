"""Every policy that is registered on one of the eight axes keeps the rules of its axis, by the suite that plugins pass too."""

import inspect
from typing import Any

import pytest
from scripted import spec

from tailrace import contracts as c
from tailrace.contracts.plugins import load, names
from tailrace.contracts.testing import check_batching_policy, check_provisioning_policy, check_training_policy
from tailrace.controller.errors import PolicyError
from tailrace.controller.spec import AXES
from tailrace.faulttol.testing import check_recovery_policy
from tailrace.repack.testing import check_relocation_policy, check_routing_policy, check_sync_policy
from tailrace.staleness.testing import check_admission_policy

SUITES: dict[str, Any] = {
    "admission": check_admission_policy,
    "batching": check_batching_policy,
    "routing": check_routing_policy,
    "sync": check_sync_policy,
    "relocation": check_relocation_policy,
    "training": check_training_policy,
    "provisioning": check_provisioning_policy,
    "recovery": check_recovery_policy,
}

TABLE_4 = {"k1": 7.28e-8, "k2": 1.72e-3, "k3": 1.25e-4, "k4": 1.07e-2}  # of StaleFlow

# Options to run a policy with, where those that it has by itself are missing or not all there is to try.
OPTIONS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("admission", "bounded"): [{"bound": 0}, {"bound": 2}, {"bound": 1, "surplus": 2}],
    ("admission", "inherent"): [{}, {"bound": 1}],
    ("admission", "one-step"): [{}, {"batchwise": True}],
    ("sync", "when-drained"): [{}, {"behind": 3}],
    ("batching", "plain"): [{}, {"samples": 1, "filter_equal_rewards": True}],
    ("batching", "tail-batching"): [
        {"prompts": 3, "samples": 2},
        {"prompts": 2, "samples": 2, "epoch_prompts": 7, "filter_equal_rewards": True, "shares": (1.0, 3.0)},
    ],
    ("batching", "redundant"): [{}, {"surplus_samples": 2}, {"surplus_groups": 3, "filter_equal_rewards": True}],
    ("routing", "marginal-throughput"): [TABLE_4, {**TABLE_4, "mu": 0.9, "prompt_tokens": 100}],
    ("routing", "skew-aware"): [TABLE_4, {**TABLE_4, "alpha": 0.5, "hysteresis": 0.0}],
    ("relocation", "best-fit"): [{}, {"literal": True}, {"headroom": 0.2, "roofline_batch": 3}],
    ("relocation", "migration"): [TABLE_4, {**TABLE_4, "phi_wait": 0, "phi_throughput": 1.5}],
    ("training", "mini-batch"): [{"parts": 1}, {"parts": 2}, {"parts": 7}],
    ("training", "dynamic-batch"): [{}, {"tokens": 1}, {"parts": 2}, {"parts": 7}],
    ("training", "streamed"): [{}, {"groups": 1}],
    ("training", "single-fetch"): [{}, {"share": 1.0}],
    ("provisioning", "static"): [{"count": 1}, {"count": 3}],
}

TRIED = {"cases", "failures"}
"""What says how many cases a suite tries: a sixth of its own number, unless it goes deep."""

# What a suite counts may be nothing: staleness on-policy, failures survived, moves of a policy that moves nothing.
IDLE = {
    ("relocation", "none"),
    *((axis, name) for axis in ("admission", "recovery") for name in names(f"tailrace.{axis}")),
}

REGISTERED = [(axis, name) for axis in SUITES for name in names(f"tailrace.{axis}")]


def test_each_axis_has_a_suite():
    assert set(SUITES) == set(AXES)
    assert {axis for axis, _ in REGISTERED} == set(AXES)
    assert set(OPTIONS) <= set(REGISTERED)


@pytest.mark.parametrize(
    ("axis", "name", "options"),
    [(axis, name, options) for axis, name in REGISTERED for options in OPTIONS.get((axis, name), [{}])],
)
def test_it_keeps_the_rules_of_its_axis(axis, name, options, deep):
    suite = SUITES[axis]
    tried = {name: each.default for name, each in inspect.signature(suite).parameters.items() if name in TRIED}
    fewer = {} if deep else {name: count // 6 for name, count in tried.items()}
    counted = suite(load(f"tailrace.{axis}", name)(**options), **fewer)
    assert counted or (axis, name) in IDLE, "the suite had nothing to check"


class Old:
    """A policy of the form before there were base classes."""

    look_s, window_s = 1.0, 1.0

    def __getattr__(self, name):
        return lambda *_: ()


@pytest.mark.parametrize("axis", sorted(c.BASES))
def test_a_spec_takes_only_policies_with_the_base_class_of_their_axis(axis):
    with pytest.raises(PolicyError) as found:
        spec(**{axis: Old()})
    (line,) = str(found.value).splitlines()
    base = c.BASES[axis].__name__
    assert line.startswith(f"axis {axis}: found Old, which does not inherit {base}, expected class Old({base}) ")
