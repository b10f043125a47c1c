"""The contract suites let through what keeps the rules, in each way that the rules leave open, and find what breaks one."""

import dataclasses
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

from tailrace import contracts as c
from tailrace.contracts.testing import (
    check_batching_policy,
    check_provisioning_policy,
    check_reason,
    check_training_policy,
)


@dataclass
class Rounds(c.BatchingPolicy):
    """Launches more than a round needs, defers what is late, and starts nothing more until the round is over."""

    launched_a_round: int = 4
    surplus_groups: int = 2

    def open(self):
        return RoundsSource(self.launched_a_round)


@dataclass
class RoundsSource(c.BatchingSource):
    size: int
    prompts: int = 0
    left: int = 0
    deferred: list[int] = field(default_factory=list)
    running: dict[int, int] = field(default_factory=dict)

    def next(self, progress):
        if not self.left and progress.generating:
            return None
        return c.Launch(self.deferred[0] if self.deferred else self.prompts, 4, 3)

    def launched(self, group, launch):
        self.left = (self.left or self.size) - 1
        self.running[group] = launch.prompt
        if launch.prompt in self.deferred:
            self.deferred.remove(launch.prompt)
        self.prompts = max(self.prompts, launch.prompt + 1)

    def keeps(self, group, rewards):
        return len(set(rewards)) > 1

    def ended(self, group, end):
        prompt = self.running.pop(group)
        if end in (c.GroupEnd.SURPLUS, c.GroupEnd.EXPIRED):
            self.deferred.append(prompt)
            return c.PromptFate.AGAIN
        return c.PromptFate.DONE

    def state(self):
        return {"prompts": self.prompts, "left": self.left, "deferred": self.deferred[:], "running": {**self.running}}


def test_a_source_that_defers_prompts_and_waits_for_rounds_to_end():
    assert check_batching_policy(Rounds()) > 5000


def rounds(**methods):
    """Rounds, whose sources do something else."""
    source = type("Source", (RoundsSource,), methods)
    return type("Policy", (Rounds,), {"open": lambda self: source(self.launched_a_round)})()


SHARED = RoundsSource(4)
ASKED = itertools.count()


def forgetful(self, group, launch):
    self.left = 1
    self.running[group] = launch.prompt
    self.deferred = [prompt for prompt in self.deferred if prompt != launch.prompt]


def greedy(self, progress):
    self.prompts += 1
    return c.Launch(self.prompts, 4, 3)


def hoards(self, group, end):
    self.running.pop(group)
    return c.PromptFate.AGAIN if end is c.GroupEnd.SURPLUS else c.PromptFate.DONE


def twice(self, group, end):
    self.deferred.append(self.running.pop(group))
    return c.PromptFate.AGAIN


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (rounds(launched=forgetful), "another group of its prompt is open"),
        (rounds(next=greedy), "`next` changed the source"),
        (rounds(next=lambda self, progress: None), "nothing will ever happen"),
        (rounds(next=lambda self, progress: c.Launch(self.prompts, 2, 3)), "cannot complete"),
        (rounds(next=lambda self, progress: c.Launch(-1, 2, 2)), "no prompt of the stream"),
        (rounds(next=lambda self, progress: 3), "expected a Launch"),
        (rounds(keeps=lambda self, group, rewards: next(ASKED) % 3 > 0), "is kept, and is not"),
        (rounds(ended=hoards), "were to come again"),
        (rounds(ended=twice), "trained on twice"),
        (rounds(ended=lambda self, group, end: None), "expected a PromptFate"),
        (rounds(state=lambda self: {"prompt": id(self)}), "not at the beginning|the same happened"),
        (rounds(state=lambda self: {"prompts": {1, 2}}), "not plain data"),
        (Rounds(surplus_groups=-1), "surplus_groups=-1"),
        (type("Shared", (Rounds,), {"open": lambda self: SHARED})(), "a source changed although it got no call"),
    ],
)
def test_the_batching_suite_finds(policy, words):
    with pytest.raises(AssertionError, match=words):
        check_batching_policy(policy)


@dataclass
class Parts(c.TrainingPolicy):
    parts: Any
    streams: bool = False

    def split(self, groups):
        return self.parts(groups)


def halves(groups):
    half = (len(groups) + 1) // 2
    return [part for part in (groups[:half], groups[half:]) if part]


def changes(groups):
    if isinstance(groups, list):
        groups.reverse()
    return [groups]


def test_parts_in_any_order():
    assert check_training_policy(Parts(halves, streams=True)) > 300
    assert check_training_policy(Parts(lambda groups: [[group] for group in sorted(groups)])) > 3000


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Parts(lambda groups: [groups[1:]]), "step on nothing|each of the"),
        (Parts(lambda groups: [groups, groups[:1]]), "each of the"),
        (Parts(lambda groups: [groups, []]), "step on nothing"),
        (Parts(changes), "was changed"),
        (
            Parts(lambda groups: [groups[:1], groups[1:]] if isinstance(groups, list) and groups[1:] else [groups]),
            "then",
        ),
        (Parts(lambda groups: halves(groups) if min(groups) % 2 else [groups], streams=True), "sizes"),
        (Parts(lambda groups: [groups], streams=None), "truth value"),
    ],
)
def test_the_training_suite_finds(policy, words):
    with pytest.raises(AssertionError, match=rf"{words}"):
        check_training_policy(policy)


@dataclass(frozen=True)
class Elastic(c.ProvisioningPolicy):
    """One replica more for each step, from two to four, and back to two: as many as the version says."""

    def growth(self):
        return c.Growth(2, 4)

    def plan(self, view):
        wanted = (2, 3, 4, 3)[view.progress.version % 4]
        there = [member for member in view.of("replica") if member.health is not c.Health.STOPPING]
        starts = [c.StartReplica()] * (wanted - len(there))
        return [*starts, *(c.StopReplica(member.id) for member in there[wanted:])]


def test_replicas_that_come_and_go():
    assert check_provisioning_policy(Elastic()) > 500


def provisioning(plan, **has):
    return type("Policy", (c.ProvisioningPolicy,), {"plan": lambda self, view: plan(view), **has})()


def replicas(view, health=None):
    return [member for member in view.of("replica") if health in (None, member.health)]


CALLS = itertools.count()  # of a policy that remembers them, which it must not


def changes_the_view(view):
    view.machines.clear()
    return () if replicas(view) else [c.StartReplica()]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (lambda view: (), "no replica is up or starting"),
        (lambda view: [c.StartReplica()], "still wants"),
        (lambda view: [c.StartReplica()] if not replicas(view) else [c.StopReplica("trainer-0")], "no replica of"),
        (
            lambda view: [c.StartReplica(), c.StartReplica()][len(replicas(view)) :] or [c.StopReplica("0")],  # type: ignore[list-item]
            "no replica of",
        ),
        (
            lambda view: (
                [c.StopReplica(stopping[0].id)]
                if (stopping := replicas(view, c.Health.STOPPING))
                else [c.StopReplica(member.id) for member in replicas(view)[:1]] or [c.StartReplica(), c.StartReplica()]  # type: ignore[list-item]
            ),
            "which is stopping",
        ),
        (lambda view: [c.StopReplica(member.id) for member in replicas(view, c.Health.UP)] or [c.StartReplica()], ""),  # type: ignore[list-item]
        (lambda view: [1] if not replicas(view) else [], "expected a start, a stop, a resize, a loan or a return"),
        (changes_the_view, "the view was changed"),
        (
            lambda view: [dataclasses.replace(c.StartReplica(), reason=c.Reason(c.Why.STILL))][len(replicas(view)) :],
            "still_s",
        ),
        (lambda view: [c.StartReplica()] * (1 - len(replicas(view)) + next(CALLS) % 3), ""),
    ],
)
def test_the_provisioning_suite_finds(plan, words):
    with pytest.raises(AssertionError, match=rf"seed \d+.*{words}"):
        check_provisioning_policy(provisioning(plan))


@pytest.mark.parametrize(
    ("has", "words"),
    [
        ({}, "its replicas use . devices after a start with ., expected a policy that says how many they may be"),
        ({"start": 2, "most": 4, "spans": None}, "its replicas use . devices after a start with ."),
        ({"growth": lambda self: c.Growth(1, 4)}, "it starts . replicas, and says start=1"),
        ({"growth": lambda self: c.Growth(2, 3)}, "it has 4 replicas, and says most=3"),
        ({"growth": lambda self: c.Growth(2, 1)}, "it has 2 replicas, and says most=1"),
    ],
)
def test_the_provisioning_suite_finds_replicas_that_nobody_was_told_of(has, words):
    with pytest.raises(AssertionError, match=rf"seed \d+.*{words}"):
        check_provisioning_policy(provisioning(Elastic().plan, **has))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda name: c.ResizeReplica(name, 2), "it stops or resizes replica-0 while the devices of .* are lent"),
        (lambda name: c.StopReplica(name), "it stops or resizes replica-0 while the devices of .* are lent"),
    ],
)
def test_the_provisioning_suite_finds_a_change_of_what_is_lent(change, words):
    class Hasty(c.ProvisioningPolicy):
        """Lends one of two replicas within a round, and does not wait for its return."""

        def round_milestones(self):
            return (0.5,)

        def plan(self, view):
            here = replicas(view)
            if not here:
                return [c.StartReplica(), c.StartReplica()]
            if view.lent:
                return [change(view.lent[0])]
            up = [load.replica for load in view.loads]
            return [c.LendReplica("replica-0")] if view.round and {"replica-0", "replica-1"} <= set(up) else ()

    with pytest.raises(AssertionError, match=rf"seed \d+.*{words}"):
        check_provisioning_policy(Hasty())


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("because", "expected a Reason"),
        (c.Reason("chosen"), "member of Why"),  # type: ignore[arg-type]
        (c.Reason(c.Why.BEHIND), "expected ['version']"),
        (c.Reason(c.Why.BEHIND, numbers={"version": 3, "least": 1}), "expected ['version']"),
        (c.Reason(c.Why.BEHIND, "r0", {"version": 3}), "names somebody"),
        (c.Reason(c.Why.MOVED), "names nobody"),
        (c.Reason(c.Why.CHOSEN, numbers={"gain": 1.0}), "expected ['gain', 'least']"),
        (c.Reason(c.Why.POLICY, numbers={"x": float("nan")}), "x=nan"),
        (c.Reason(c.Why.POLICY, numbers={"x": True}), "x=True"),
        (c.Reason(c.Why.POLICY, numbers={1: 2.0}), "a number 1"),  # type: ignore[dict-item]
    ],
)
def test_reasons_that_do_not_say_what_their_kind_promises(reason, words):
    with pytest.raises(AssertionError) as found:
        check_reason(reason, "here")
    assert words in str(found.value)


def test_reasons_that_do():
    for reason in (
        c.CHOSEN,
        c.Reason(c.Why.CHOSEN, numbers={"gain": 2.0, "least": 1.0}),
        c.Reason(c.Why.POLICY, "r0", {"anything": 1}),
        c.Reason(c.Why.MOVED, "r0"),
        c.Reason(c.Why.STILL, numbers={"still_s": 31.0, "limit_s": 30.0}),
    ):
        check_reason(reason, "here")


@dataclass(frozen=True)
class Named(c.ProvisioningPolicy):
    """A policy whose properties happen to be called as facts were in the old form, and as fields of today's records are."""

    start: int = 1
    most: int = 9
    spans: int = 4
    milestones: tuple = (0.5,)
    iterations: int = 7
    yields_at: float = 0.5
    lends: bool = True
    sizes: tuple = (1, 2)

    def plan(self, view):
        return [] if replicas(view) else [c.StartReplica()]


def test_a_policy_says_what_it_does_by_overriding_alone():
    policy = Named()
    assert (policy.growth(), policy.round_milestones(), policy.yields_from()) == (None, None, None)
    assert not policy.watched_iterations()
    assert not policy.lends_devices()
    assert not policy.sizes_of_replicas()
    c.check_policy("provisioning", policy)
    assert check_provisioning_policy(policy) > 0


class Old:
    """A policy of the form before there were base classes."""

    start, most, spans = 1, 4, None

    def plan(self, view):
        return ()


class Unplanned(c.ProvisioningPolicy):
    pass


class Valued(c.ProvisioningPolicy):
    growth = 4

    def plan(self, view):
        return ()


class OldGate(c.AdmissionPolicy):
    def gate(self, batch_groups):
        return Old()


class OldSource(c.BatchingPolicy):
    def open(self):
        return Old()


@pytest.mark.parametrize(
    ("axis", "policy", "words"),
    [
        ("provisioning", Old, "found Old, .* expected class Old(ProvisioningPolicy) of tailrace.contracts with plan; "),
        ("provisioning", Old(), "by overriding growth, sizes_of_replicas, watched_iterations, round_milestones, "),
        ("recovery", Old(), "expected class Old(RecoveryPolicy) of tailrace.contracts with on_down, window_s; "),
        ("provisioning", Unplanned, "found Unplanned without plan, expected what ProvisioningPolicy asks for"),
        ("provisioning", Valued, "found Valued.growth, which is no method, expected a method as in ProvisioningPolicy"),
        ("admission", OldGate(), "expected class Old(AdmissionGate) of tailrace.contracts with bound, complete, "),
        ("batching", OldSource(), "expected class Old(BatchingSource) of tailrace.contracts with ended, keeps, "),
    ],
)
def test_a_policy_of_the_old_form_is_refused_in_one_line(axis, policy, words):
    with pytest.raises(c.PluginError) as found:
        c.check_policy(axis, policy)
    line = str(found.value)
    assert "\n" not in line
    assert all(part in line for part in words.split(" .* ")), line


@dataclass
class Counted(c.ProvisioningPolicy):
    """A policy of the form in which an option's name said that it follows from the run."""

    count: int = 2

    def plan(self, view):
        return ()


class Asking(Counted):
    @classmethod
    def options_from(cls, facts):
        return {"count": facts.replicas}


def test_an_option_that_was_filled_by_its_name_must_say_where_it_comes_from():
    with pytest.raises(
        c.PluginError, match=r"found Counted\.count, .* expected the class method Counted\.options_from"
    ) as found:
        c.check_options(Counted)
    assert "\n" not in str(found.value)
    c.check_options(Asking)
    c.check_options(Named)
    facts = c.Facts(prompts=2, samples=3, replicas=5, slots=7, max_tokens=11)
    assert (Counted.options_from(facts), Asking.options_from(facts), facts.trajectories) == ({}, {"count": 5}, 6)
