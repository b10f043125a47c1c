"""Fuzzing finds bugs that are planted, says which invariant they break, and shrinks the schedule that shows them.

Shrinking takes most of the time, so most of it belongs to the deep tests.
"""

import warnings

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
# The seed of a small case that shows each; only to save time, any other seed does as well, and a stale one is told.
FIRST = {
    "newer weights, and the batches of the checkpoint": 32,
    "a step before hybrids have left": 7,
    "hybrids that yield before their share": 1136,
    "a queue that is lost": 716,
    "a deferred prompt that is done": 716,
    "work on devices that are lent": 124,
    "a late route that begins what was dropped": 11,
    "a group streamed twice": 216,
    "a step beside a cell at work": 857,
    "a gate that admits without checking": 1081,
    "planning that forgets what it planned": 858,
    "serving what arrived damaged": 573,
    "work before the first pull": 216,
    "a trajectory lost with its replica": 216,
    "commands carried out as they arrive": 2,
    "a broken verifier as a zero": 2,
    "version numbers used again": 145,
    "a version that is seen before it is saved": 372,
    "a controller that remembers beside its log": 85,
    "an interruption that counts a token too many": 213,
    "a version that is gone for the controller alone": 847,
    "a failed pull that nobody hears of": 573,
    "a route sent before its discard": 52,
    "a pull lost while no relay lives": 1209,
    "Up inside the loop over commands": 2,
    "an answer of a dead incarnation believed": 265,
    "a discard forgotten on resume": 807,
    "a checkpoint without deadline": 41,
    "waits of the dead": 2,
    "a discard that is over at its first answer": 228,
    "a turn believed as often as it is said": 4,
    "calls that die with their environment": 2,
    "sessions without a limit": 2,
    "sessions that nobody ends": 2,
    "a home that forgets": 2,
    "no epoch": 93,
    "the dead among the living": 1681,
    "a stale heartbeat": 4,
    "a heartbeat that nobody notes": 2,
    "commands in another order": 26,
    "answers that nobody waits for": 127,
    "a call without deadline": 8,
    "no acknowledgement": 34,
    "commands sent once": 4,
    "commands taken twice": 64,
    "a step that waits for what only it lets start": 220,
    "starts that are forgotten": 69,
    "failures that count twice": 7,
    "a source that serves two": 31,
    "commands that count as taken": 1454,
    "an unanswered turn that goes on": 2,
}
# Where the shrinking begins, if not with the first seed that shows it: a case that leaves something to shrink.
SHRUNK_FROM = {
    "a version that is gone for the controller alone": 847,
    "a poll without deadline": 97,
    "an answer of a dead incarnation believed": 265,
    "answers that nobody waits for": 127,
    "a route sent before its discard": 296,
    "a late route that begins what was dropped": 74,
    "a step that waits for what only it lets start": 65,
    "a pull lost while no relay lives": 1209,
    "the dead among the living": 1681,
    "commands that count as taken": 1454,
    "failures that are forgotten": 196,
    "a discard that is over at its first answer": 228,
}
ALL = {**MUTANTS, **EXECUTOR_MUTANTS, **TURN_MUTANTS, **ATTACH_MUTANTS}
# Where the shrinking is looked at each time; it repeats the runs of a case.
SHRUNK = ("work before the first pull", "sessions that nobody ends")
LONG = {
    "a chain that keeps a dead relay",
    "a route sent before its discard",
    "a poll without deadline",
    "an unanswered turn that goes on",
    "a late route that begins what was dropped",
    "failures that are forgotten",
}


def hunt(mutant, first):
    """A seed that shows the bug."""
    for case in map(draw_case, [first, *range(SEEDS)]):
        failure = run_case(case).failure
        if failure is not None and failure.invariant in mutant.found:
            if case.seed != first:
                warnings.warn(f"seed {case.seed} shows it, and seed {first} does not any more", stacklevel=2)
            return case, failure
    pytest.fail(f"{SEEDS} seeds did not find it")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.deep] * (name in LONG)) for name in ALL])
@pytest.mark.cases(24)
def test_a_planted_bug_is_found(name, monkeypatch):
    ALL[name].plant(monkeypatch)
    hunt(ALL[name], FIRST.get(name, SHRUNK_FROM.get(name, 0)))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.deep] * (name not in SHRUNK)) for name in ALL])
@pytest.mark.deep
def test_its_case_is_shrunk(name, tmp_path):
    mutant = ALL[name]
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        case, failure = hunt(mutant, SHRUNK_FROM.get(name, 0))
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
