"""Both policies in one: beside a plain reference, in a fleet whose rounds come and go, and what it must never do."""

import random
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tailrace import contracts as c
from tailrace.contracts.testing.provisioning import ProvisioningDrive, check_provisioning_policy
from tailrace.repack import AdaptiveTP, AdaptiveTPScaleDown, LoadError, ScaleDown

DEVICES, CELLS = 4, 4


def record(number, kind, tp, preemptions):
    return c.RoundRecord(number, kind, 8, tp, preemptions, 10.0)


def view(tp, *, generated=30, kind="short", rounds=(), lent=()):
    """A fleet of four devices, each with a cell of the trainer, in replicas of `tp`."""
    names = [f"r{n}" for n in range(DEVICES // tp)]
    loads = [
        c.ReplicaView(
            name, 3, False, 2, 16, 0.01, 0.01, 0.01, 0, True, 2, 1_000 * tp, True, False, {}, 0,
            tuple(range(n * tp, n * tp + tp)),
        )
        for n, name in enumerate(names)
    ]  # fmt: skip
    now = None if generated is None else c.RoundView(7, kind, 50, 0, 100, generated)
    members = [c.MemberView("replica", name, c.Health.UP, tp=tp) for name in names]
    return c.FleetView(
        {}, members, c.Progress(3, 3, 0, 0, 0, 0, 0, 4, 100), round=now, rounds=tuple(rounds),
        loads=tuple(load for load in loads if load.replica not in lent), lengths=(10,) * 90 + (100,) * 10, lent=tuple(lent),
    )  # fmt: skip


def kinds(actions):
    return [(type(action).__name__, action.replica) for action in actions if not isinstance(action, c.StartReplica)]


def test_it_says_that_it_watches_rounds_and_lends():
    policy = AdaptiveTPScaleDown(count=DEVICES)
    assert policy.lends_devices()
    assert policy.round_milestones() == ScaleDown().round_milestones()
    assert not AdaptiveTP().lends_devices()


def test_it_resizes_as_a_round_begins_and_lends_within_it():
    policy = AdaptiveTPScaleDown(count=DEVICES, long=2)
    assert policy.plan(view(1, generated=0)) == ()
    assert kinds(policy.plan(view(1, generated=30))) == [("LendReplica", "r0"), ("LendReplica", "r1")]
    grows = kinds(policy.plan(view(1, generated=0, kind="long")))
    assert grows == [("StopReplica", "r1"), ("StopReplica", "r3"), ("ResizeReplica", "r0"), ("ResizeReplica", "r2")]
    assert kinds(policy.plan(view(2, generated=30, kind="long"))) == [("LendReplica", "r0")]  # its two cells are half


def test_what_is_lent_returns_before_a_resize():
    policy = AdaptiveTPScaleDown(count=DEVICES, long=2)
    begins = view(1, generated=0, kind="long", lent=["r0", "r1"])
    assert kinds(policy.plan(begins)) == [("ReturnReplica", "r0"), ("ReturnReplica", "r1")]
    assert kinds(policy.plan(replace(begins, lent=("r1",)))) == [("ReturnReplica", "r1")]  # a cell still computes there
    assert ("ResizeReplica", "r0") in kinds(policy.plan(view(1, generated=0, kind="long")))


def test_one_replica_of_all_devices_lends_none():
    policy = AdaptiveTPScaleDown(count=DEVICES, short=4)
    assert policy.plan(view(4)) == ()


def test_it_is_one_policy_or_the_other(seeds):
    """The reference asks both, one after the other, as a person would say it."""
    for seed in seeds(300):
        draw = random.Random(seed)
        options: dict[str, Any] = {"count": DEVICES, "short": draw.choice([None, 1, 2]), "long": draw.choice([1, 2, 4])}
        rounds = [
            record(n, draw.choice(["short", "long"]), draw.choice([1, 2]), draw.choice([0, 0, 3, 9])) for n in range(9)
        ]
        tp = draw.choice([1, 2, 4])
        seen = view(
            tp, generated=draw.choice([None, 0, 25, 50, 90]), kind=draw.choice(["short", "long"]), rounds=rounds,
            lent=draw.choice([(), (), ("r0",)]) if tp < 4 else (),
        )  # fmt: skip
        planner, scaler = AdaptiveTP(**options), ScaleDown(DEVICES)
        expected = () if seen.lent or seen.round is None else planner.plan(seen)
        if not expected:
            expected = scaler.plan(seen)
        found = AdaptiveTPScaleDown(**options).plan(seen)
        assert list(found) == list(expected), f"seed {seed}"
        resizes = any(isinstance(action, c.ResizeReplica | c.StopReplica | c.StartReplica) for action in found)
        hands = any(isinstance(action, c.LendReplica | c.ReturnReplica) for action in found)
        assert not (resizes and hands), f"seed {seed}"


@dataclass
class Phases(c.ProvisioningPolicy):
    """The policy in a fleet in which the kind of the rounds depends on chance."""

    policy: AdaptiveTPScaleDown
    seed: int

    def round_milestones(self):
        return self.policy.round_milestones()

    def plan(self, view):
        kind = random.Random(f"{self.seed} {view.progress.version // 6}").choice(["short", "long"])
        return self.policy.plan(replace(view, round=None if view.round is None else replace(view.round, kind=kind)))


def test_it_keeps_the_contract_of_its_axis():
    assert check_provisioning_policy(AdaptiveTPScaleDown(count=3), cases=20) > 20
    resized = lent = both = 0
    for seed in range(160):
        drive = ProvisioningDrive(Phases(AdaptiveTPScaleDown(count=4, short=2, long=1), seed), seed)
        had_lent = had_resized = False
        for _ in range(60):
            drive.settle()
            working = [member for member in drive.replicas() if member.health is not c.Health.STOPPING]
            assert sum(member.tp for member in working) <= 4, f"seed {seed}"
            resized += sum(member.health is c.Health.RESIZING for member in working)
            lent += len(drive.lent)
            had_resized |= any(member.health is c.Health.RESIZING for member in working)
            had_lent |= bool(drive.lent)
            drive.happen()
        both += had_lent and had_resized
    assert min(resized, lent, both) > 5, (resized, lent, both)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tp": 3}, "found tp=3, expected one of 1, 2, 4, 8: a replica spans at most 8 devices"),
        ({"long": 8, "count": 8, "heads": 28}, "found long=8, expected one of 1, 2, 4: .* the model has 28 heads"),
        ({"count": 0}, "found count=0, expected at least 1"),
        ({"max_tokens": 0}, "found count=2 and max_tokens=0, expected at least 1"),
        ({"first": 0.6}, "found first=0.6, last=0.5"),
    ],
)
def test_options_of_both_are_checked_in_one_line(options, said):
    with pytest.raises(LoadError, match=said) as error:
        AdaptiveTPScaleDown(**options)
    assert "\n" not in str(error.value)
