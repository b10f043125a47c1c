"""Policies that no plugin names: as an object, as a class whose options are drawn, and what is refused."""

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Annotated, Literal

import pytest

from tailrace.contracts import Cause, Failure, RecoveryAction, RecoveryPolicy, Tried
from tailrace.controller.policies.batching import Redundant
from tailrace.fuzz import Case, CaseError, draw_case, fuzz, replay, run_case
from tailrace.fuzz.policies import draw_policy, ends_run
from tailrace.repack import LeastLoaded
from tailrace.staleness import Bounded, StalenessManager
from tailrace.staleness.bounded import BoundedGate


class Word(StrEnum):
    ONE = "one"
    TWO = "two"


@dataclass(frozen=True)
class Optional(LeastLoaded):
    number: Annotated[int, Tried((3, 5), rarely=(99,))] = 0
    truth: bool = False
    literal: Literal["a", "b"] = "a"
    word: Word = Word.ONE
    untold: float = 0.25

    def __post_init__(self):
        if self.number == 5 and self.truth:
            raise ValueError("found 5 and true, expected one of them")


@dataclass(frozen=True)
class Lax(Bounded):
    """Promises one version less than it keeps."""

    def gate(self, batch_groups):
        class Gate(BoundedGate):
            bound = self.bound - 1

        return Gate(StalenessManager(self.bound, batch_groups, 0, self.surplus))


def test_options_are_drawn_by_their_types():
    random = Random(0)
    drawn = [draw_policy(random, "routing", {"routing": Optional}) for _ in range(300)]
    assert {policy["number"] for policy in drawn} == {3, 5, 99}
    assert {policy["truth"] for policy in drawn} == {True, False}
    assert {policy["literal"] for policy in drawn} == {"a", "b"}
    assert {policy["word"] for policy in drawn} == {"one", "two"}
    assert not any("untold" in policy or (policy["number"] == 5 and policy["truth"]) for policy in drawn)


def test_a_class_is_in_every_case_and_its_options_are_in_the_file(tmp_path):
    case = draw_case(1, {"routing": Optional})
    assert case.pipeline.routing.name.endswith("Optional")
    (tmp_path / "case.json").write_text(case.to_json())
    made = Case.read(tmp_path / "case.json").spec({"routing": Optional}).routing
    assert made == Optional(**{**case.pipeline.routing.options, "word": Word(case.pipeline.routing.options["word"])})
    assert run_case(case, {"routing": Optional}, twice=True).failure is None
    with pytest.raises(CaseError, match=r"pipeline\.routing"):
        run_case(case)


@pytest.mark.deep
def test_an_object_is_that_object():
    mine = Optional(number=7)
    assert all(draw_case(seed, {"routing": mine}).spec({"routing": mine}).routing is mine for seed in range(5))
    assert not fuzz(5, routing=mine).found


@pytest.mark.deep
def test_a_batching_policy_says_how_many_samples_a_group_has():
    mine = Redundant(samples=3, surplus_samples=1, surplus_groups=1)
    assert {draw_case(seed, {"batching": mine}).pipeline.samples_per_prompt for seed in range(10)} == {3}
    assert not fuzz(6, batching=mine).found
    with pytest.raises(CaseError, match="expected an admission with room for them"):
        fuzz(1, batching=mine, admission="on-policy")


def test_a_plugin_by_name_is_in_every_case():
    assert {draw_case(seed, {"sync": "barrier"}).pipeline.sync.name for seed in range(20)} == {"barrier"}


@pytest.mark.deep
def test_a_gate_that_promises_too_much_is_found_shrunk_and_replayed(tmp_path):
    found = fuzz(20, admission=Lax(2), shrink_s=1, out=tmp_path).found
    assert found
    again = replay(found[0].path, admission=Lax(2)).failure
    assert again.same_as(found[0].failure)
    assert f"fuzz([{found[0].seeds[0]}], admission=...)" in str(fuzz(found[0].seeds[:1], admission=Lax(2), shrink_s=0))


@pytest.mark.deep
def test_processes_find_the_same(deep):
    alone, beside = (fuzz(12 if deep else 4, processes=count, shrink_s=0, sync="interrupting") for count in (1, 2))
    assert alone.summary.ended == beside.summary.ended
    assert alone.summary.covered == beside.summary.covered


def test_an_axis_that_is_not_there_is_refused():
    with pytest.raises(CaseError, match="did you mean 'routing'"):
        fuzz(1, rooting=LeastLoaded())


def test_a_policy_that_takes_no_draw_is_refused():
    @dataclass(frozen=True)
    class Never(LeastLoaded):
        def __post_init__(self):
            raise ValueError("never")

    with pytest.raises(CaseError, match="took none of"):
        draw_case(0, {"routing": Never})


def test_a_recovery_says_whether_it_ends_the_run():
    class Third(RecoveryPolicy):
        window_s = 60.0

        def on_down(self, failure: Failure):
            assert failure.cause is Cause.DIED
            return RecoveryAction.FAIL if failure.failures > 2 else RecoveryAction.RESTART

    assert not ends_run(Third(), "replica", failures=2, others=1)
    assert ends_run(Third(), "replica", failures=3, others=1)
