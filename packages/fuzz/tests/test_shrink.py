"""Shrinking against causes that are known: what has nothing to do with the failure goes."""

from tailrace.fuzz.case import MessagesCase
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.errors import CaseError
from tailrace.fuzz.faults import BreakKind, CaseFault
from tailrace.fuzz.shrink import Shrinker
from tailrace.fuzz.trial import Violation

BROKEN = Violation("an invariant", "r1 lost 12.3 at 4.5", 10, 4.5)
FAULTS = tuple(
    CaseFault(kind=BreakKind.KILL, role="replica", member=f"r{index % 3}", at_step=index, after_s=0.5)
    for index in range(8)
)


def large(**changes):
    """A case with something of everything."""
    found = next(
        case
        for case in map(draw_case, range(1_000))
        if case.replicas >= 3
        and case.pipeline.steps >= 4
        and case.pipeline.prompts_per_step >= 3
        and case.evaluation.size
    )
    return found.model_copy(
        update={"faults": FAULTS, "messages": MessagesCase(delay_s=0.3, repeat=0.5), "replicas": 3, **changes}
    )


def shrink(case, breaks):
    return Shrinker(case, BROKEN, limit_s=5.0, run=lambda smaller: BROKEN if breaks(smaller) else None).shrink()


def test_the_two_faults_that_matter_stay():
    def breaks(case):
        return {fault.at_step for fault in case.faults} >= {2, 6}

    small = shrink(large(), breaks)
    assert sorted(fault.at_step for fault in small.faults) == [2, 6]
    assert {fault.after_s for fault in small.faults} == {0.0}


def test_what_does_not_matter_becomes_plain():
    small = shrink(large(), lambda case: case.messages.repeat > 0 and case.replicas >= 2)
    assert small.faults == ()
    assert small.messages == MessagesCase(delay_s=0.0, repeat=0.5)
    pipeline = small.pipeline
    assert (pipeline.steps, pipeline.prompts_per_step, pipeline.samples_per_prompt, small.replicas) == (1, 1, 2, 2)
    assert small.evaluation.size == 0
    assert pipeline.relocation.name == "none"
    assert pipeline.sampler.name == "fifo"
    assert small.workload.environment is None


def test_faults_of_replicas_that_are_left_out_go_with_them():
    small = shrink(large(), lambda case: bool(case.faults))
    assert small.replicas == 1
    assert {fault.member for fault in small.faults} == {"r0"}


def test_another_failure_is_not_the_same():
    def run(case):
        return BROKEN if case.replicas == 3 else Violation("another invariant", BROKEN.what, 1, 1.0)

    assert Shrinker(large(), BROKEN, limit_s=5.0, run=run).shrink().replicas == 3
    assert BROKEN.same_as(Violation("an invariant", "r0 lost 7.1 at 0.25", 3, 0.3))
    assert not BROKEN.same_as(Violation("an invariant", "r1 found 12.3 at 4.5", 10, 4.5))
    assert not BROKEN.same_as(None)


def test_a_case_that_cannot_be_is_passed_over():
    def run(case):
        if case.replicas < 3:
            raise CaseError("found too few replicas, expected 3")
        return BROKEN

    assert Shrinker(large(), BROKEN, limit_s=5.0, run=run).shrink().replicas == 3


def test_no_time_no_shrinking():
    case = large()
    assert Shrinker(case, BROKEN, limit_s=0.0, run=lambda _: BROKEN).shrink() == case
