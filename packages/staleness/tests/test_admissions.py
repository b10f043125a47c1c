"""Each admission by the shared suite, and what it says of itself."""

from importlib.metadata import entry_points

import pytest

from tailrace.contracts import AdmissionPolicy, Candidate
from tailrace.staleness import (
    Bounded,
    DuplicateError,
    InFlightCap,
    Inherent,
    LimitError,
    NotReadyError,
    OneStep,
    OnPolicy,
    SamplerError,
    StalenessBoundExceeded,
    VersionError,
)
from tailrace.staleness.inherent import SampledGate
from tailrace.staleness.lockstep import LockstepGate
from tailrace.staleness.testing import RandomSampler, check_admission_policy


class First:
    def pick(self, candidates, count):
        return [candidate.key for candidate in candidates[:count]]


def candidates(*groups):
    return [Candidate(group, 0, order, (1.0,), 1) for order, group in enumerate(groups)]


BOUNDED = [
    Bounded(0),
    Bounded(),
    Bounded(3),
    Bounded(0, surplus=1),
    Bounded(1, surplus=2),
    OnPolicy(),
    OneStep(),
    OneStep(batchwise=True),
    InFlightCap(0, in_order=True),
    InFlightCap(3, in_order=True),
    Inherent(bound=0),
    Inherent(bound=2),
]


@pytest.mark.parametrize("policy", BOUNDED, ids=repr)
def test_guarantees_hold(policy: AdmissionPolicy):
    bound = policy.gate(4).bound
    assert bound is not None
    assert check_admission_policy(policy, seed=100) == bound


@pytest.mark.parametrize("policy", [InFlightCap(0), InFlightCap(1), InFlightCap(3), Inherent()], ids=repr)
def test_without_a_guarantee_the_bound_is_overshot(policy):
    """Why `bounded` exists: the cap of a bound of 1 lets groups through that are older than 1."""
    assert policy.gate(4).bound is None
    assert check_admission_policy(policy, seed=100) > (policy.bound or 0)


@pytest.mark.parametrize(
    ("policy", "room"),
    [
        (Bounded(1), 8),
        (Bounded(3, surplus=2), 24),
        (OnPolicy(), 4),
        (OneStep(), 8),
        (OneStep(batchwise=True), 4),
        (InFlightCap(1), 8),
        (Inherent(), None),
    ],
    ids=repr,
)
def test_room(policy, room):
    assert policy.gate(4).room == room


def test_a_long_group_overtaken_in_completion_order_exceeds_the_cap_but_not_the_buffers():
    """AReaL's and verl's counter against StaleFlow's buffers, on the same lengths: one group that takes very long."""

    def consumed_at(policy):
        gate = policy.gate(2)
        version = started = 0
        running, complete = [], []
        while version < 20:
            while gate.tentative().allows(version):
                gate.start(started, version)
                running.append(started)
                started += 1
            short = [group for group in running if group != 0]
            # Group 0 ends after five batches, or when nothing else is left to end.
            done = short[0] if short and version < 5 else 0 if 0 in running else short[0]
            gate.complete(done)
            running.remove(done)
            complete.append(done)
            if gate.ready():
                batch = gate.consume(candidates(*complete), First())
                if 0 in batch:
                    return version
                complete = [group for group in complete if group not in batch]
                version += 1
        return None

    assert consumed_at(InFlightCap(1)) == 5
    assert consumed_at(Bounded(1)) == 1
    assert consumed_at(OneStep()) == 0


def test_lockstep_waits_for_its_own_batch():
    gate = OneStep().gate(1)
    gate.start(0, 0)
    gate.start(1, 0)
    gate.complete(1)
    assert not gate.ready()
    gate.complete(0)
    assert gate.consume(candidates(1, 0), First()) == [0]
    # Group 1 is the next batch; one more may run ahead, but not at version 0, which would be 2 old.
    assert not gate.tentative().allows(0)
    assert gate.tentative().allows(1)


def test_batchwise_has_room_for_a_batch_once_the_one_before_has_started_whole():
    gate = OneStep(batchwise=True).gate(2)
    gate.start(0, 0)
    assert gate.room == 2
    gate.start(1, 0)
    assert gate.room == 4
    gate.start(2, 0)
    for group in (0, 1):
        gate.complete(group)
    gate.consume(candidates(0, 1), First())
    assert gate.room == 2  # the second batch has one of its two groups
    gate.start(3, 0)
    gate.drop(2)
    assert gate.room == 2  # it needs another


def test_on_policy_refuses_stale_versions():
    gate = OnPolicy().gate(1)
    gate.start(0, 0)
    gate.complete(0)
    gate.consume(candidates(0), First())
    with pytest.raises(StalenessBoundExceeded):
        gate.start(1, 0)
    gate.start(1, 1)


def test_lockstep_reset_returns_what_no_longer_fits():
    gate = OneStep().gate(1)
    assert sorted(gate.reset(3, {7: (3, False), 8: (2, True), 9: (3, True), 10: (4, True), 11: (1, True)})) == [
        7,
        10,
        11,
    ]
    assert gate.ready()


def test_inherent_bound_refuses_old_groups_at_consumption():
    """What is complete and older than the bound expires."""
    gate = Inherent(bound=0).gate(1)
    gate.start(0, 0)
    gate.start(1, 0)
    gate.complete(0)
    gate.complete(1)
    assert gate.expired() == ()
    assert gate.consume(candidates(0, 1), First()) == [0]
    assert gate.expired() == [1]
    assert not gate.ready()
    gate.drop(1)
    assert gate.expired() == ()


def test_a_sampler_is_held_to_its_contract():
    gate = Inherent().gate(2)
    for group in range(3):
        gate.start(group, 0)
        gate.complete(group)

    class Twice:
        def pick(self, offered, count):
            return [offered[0].key] * count

    class Unknown:
        def pick(self, offered, count):
            return [offered[0].key, 77]

    for sampler in (Twice(), Unknown()):
        before = gate.state()
        with pytest.raises(SamplerError, match="2 different groups"):
            gate.consume(candidates(0, 1, 2), sampler)
        assert gate.state() == before
    with pytest.raises(SamplerError, match="candidate 9"):
        gate.consume(candidates(0, 9), First())


@pytest.mark.parametrize("policy", [Bounded(1), OneStep()], ids=repr)
def test_a_due_group_that_is_not_offered(policy):
    gate = policy.gate(1)
    gate.start(0, 0)
    gate.complete(0)
    with pytest.raises(SamplerError, match=r"expected .* the whole"):
        gate.consume([], First())
    assert gate.ready()


@pytest.mark.parametrize("policy", [*BOUNDED, InFlightCap(), Inherent()], ids=repr)
def test_mistakes_are_typed_errors(policy):
    gate = policy.gate(2)
    gate.start(0, 0)
    for error, action in (
        (VersionError, lambda: gate.start(1, 1)),
        (VersionError, lambda: gate.start(1, -1)),
        (DuplicateError, lambda: gate.start(0, 0)),
        (NotReadyError, lambda: gate.consume([], RandomSampler(0))),
    ):
        with pytest.raises(error):
            action()
    gate.drop(0)
    gate.drop(55)
    with pytest.raises(LimitError):
        policy.gate(0)


@pytest.mark.parametrize(
    "build", [lambda: Bounded(-1), lambda: Bounded(1, -1), lambda: InFlightCap(-1), lambda: Inherent(-1)]
)
def test_limits(build):
    with pytest.raises(LimitError):
        build()


def test_the_suite_finds_a_gate_that_breaks_its_word():
    class Liar(SampledGate):
        @property
        def bound(self):
            return 1

    class Policy(AdmissionPolicy):
        def gate(self, batch_groups):
            return Liar("liar", batch_groups, cap=2 * batch_groups)

    with pytest.raises(AssertionError, match=r"seed \d+.*versions old, bound 1"):
        check_admission_policy(Policy())


def test_the_suite_finds_a_view_that_does_not_count():
    class Forgetful(SampledGate):
        def tentative(self):
            class View:
                def allows(self, version):
                    return True

                def take(self, group, version):
                    pass

                def fork(self):
                    return self

            return View()

    class Policy(AdmissionPolicy):
        def gate(self, batch_groups):
            return Forgetful("forgetful", batch_groups, cap=batch_groups)

    with pytest.raises((AssertionError, StalenessBoundExceeded)):
        check_admission_policy(Policy())


def test_the_suite_finds_a_gate_that_names_groups_of_later_batches_trainable():
    class Hasty(LockstepGate):
        def trainable(self):
            return [group for group, known in self._ledger.groups.items() if known.complete]

    class Policy(AdmissionPolicy):
        def gate(self, batch_groups):
            return Hasty("hasty", 1, batch_groups)

    with pytest.raises(SamplerError, match=r"to train on, expected .*, the whole batch"):
        check_admission_policy(Policy())


def test_plugins_are_registered():
    found = {point.name: point for point in entry_points(group="tailrace.admission")}
    mine = {name: point for name, point in found.items() if point.value.startswith("tailrace.staleness:")}
    if not mine:
        pytest.skip("the distribution is not installed here")
    for name, policy in {
        "bounded": Bounded,
        "in-flight-cap": InFlightCap,
        "on-policy": OnPolicy,
        "one-step": OneStep,
        "inherent": Inherent,
    }.items():
        assert mine[name].load() is policy
