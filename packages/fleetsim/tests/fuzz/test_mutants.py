"""Fuzzing finds bugs that are planted, says which invariant they break, and shrinks the schedule that shows them."""

import pytest
from executor_mutants import EXECUTOR_MUTANTS
from mutants import MUTANTS

from tailrace.fleetsim.fuzz.case import Case
from tailrace.fleetsim.fuzz.draw import draw_case
from tailrace.fleetsim.fuzz.shrink import Shrinker
from tailrace.fleetsim.fuzz.trial import run_case

SEEDS = 400
SHRINK_S = 1.5


def hunt(mutant):
    """The first seed that shows the bug."""
    for case in map(draw_case, range(SEEDS)):
        failure = run_case(case).failure
        if failure is not None and failure.invariant in mutant.found:
            return case, failure
    pytest.fail(f"{SEEDS} seeds did not find it")


@pytest.mark.parametrize("name", [*MUTANTS, *EXECUTOR_MUTANTS])
def test_a_planted_bug_is_found_and_its_case_shrunk(name, tmp_path):
    mutant = {**MUTANTS, **EXECUTOR_MUTANTS}[name]
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        case, failure = hunt(mutant)
        shrinker = Shrinker(case, failure, limit_s=SHRINK_S)
        small = shrinker.shrink()
        path = tmp_path / "case.json"
        path.write_text(small.to_json())
        again = run_case(Case.read(path)).failure
    assert again == shrinker.failure
    assert again.same_as(failure)
    assert len(small.faults) <= len(case.faults)
    assert size(small) < size(case)
    assert run_case(small).failure is None, "the shrunk case breaks without the bug"


def size(case):
    pipeline = case.pipeline
    numbers = (pipeline.steps, pipeline.prompts_per_step, pipeline.samples_per_prompt, case.replicas, len(case.faults))
    return sum(numbers) + case.evaluation.size + (case.messages.delay_s > 0) + (case.messages.repeat > 0)
