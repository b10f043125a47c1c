"""Fuzzing finds bugs that are planted, says which invariant they break, and shrinks the schedule that shows them.

Shrinking takes most of the time, so most of it belongs to the deep tests.
"""

import pytest
from attach_mutants import ATTACH_MUTANTS
from executor_mutants import EXECUTOR_MUTANTS
from mutants import MUTANTS
from turn_mutants import TURN_MUTANTS

from tailrace.fuzz.case import Case
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.shrink import Shrinker
from tailrace.fuzz.trial import run_case

SEEDS = 400
TRIALS = 40
# Where those were found that few seeds show; only to save time, any other seed does as well.
FIRST = {
    "a version that is gone for the controller alone": 847,
    "a poll without deadline": 97,
    "an answer of a dead incarnation believed": 265,
    "answers that nobody waits for": 112,
    "a route sent before its discard": 296,
    "a late route that begins what was dropped": 74,
    "a step that waits for what only it lets start": 65,
    "a pull lost while no relay lives": 1209,
    "the dead among the living": 1681,
    "commands that count as taken": 1904,
    "failures that are forgotten": 196,
    "a discard that is over at its first answer": 228,
}
ALL = {**MUTANTS, **EXECUTOR_MUTANTS, **TURN_MUTANTS, **ATTACH_MUTANTS}
# Where the shrinking is looked at each time; it repeats the runs of a case.
SHRUNK = (
    "a group streamed twice",
    "work before the first pull",
    "a trajectory lost with its replica",
    "sessions that nobody ends",
)
LONG = {
    "a chain that keeps a dead relay",
    "a route sent before its discard",
    "a poll without deadline",
    "failures that are forgotten",
}


def hunt(mutant, first):
    """A seed that shows the bug."""
    for case in map(draw_case, [first, *range(SEEDS)]):
        failure = run_case(case).failure
        if failure is not None and failure.invariant in mutant.found:
            return case, failure
    pytest.fail(f"{SEEDS} seeds did not find it")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.deep] * (name in LONG)) for name in ALL])
def test_a_planted_bug_is_found(name, monkeypatch):
    ALL[name].plant(monkeypatch)
    hunt(ALL[name], FIRST.get(name, 0))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.deep] * (name not in SHRUNK)) for name in ALL])
def test_its_case_is_shrunk(name, tmp_path):
    mutant = ALL[name]
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        case, failure = hunt(mutant, FIRST.get(name, 0))
        shrinker = Shrinker(case, failure, limit_s=120, most=TRIALS)
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
