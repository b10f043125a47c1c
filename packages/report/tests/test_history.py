"""The log alone tells what the controller knows: whatever breaks, the fold comes to the same as the controller itself."""

from collections import Counter

import pytest

from tailrace import contracts as c
from tailrace.controller.spec import PipelineSpec
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.trial import FuzzSimulation
from tailrace.pipeline.run.build import build_spec
from tailrace.report.figures import prompts
from tailrace.report.fold.folds import Folds
from tailrace.report.fold.history import History
from tailrace.report.fold.interruptions import MarkKind

from .conftest import STALEFLOW, configured, simulated

ROLES = ("replica", "trainer", "data", "relay", "scorer", "ranker", "environment")


def folded(simulation):
    folds = Folds(simulation.fleet.spec)
    for instant in simulation.log.instants:
        folds.observe(*instant)
    return folds.history, folds


@pytest.fixture(scope="module")
def fuzzed():
    """Random pipelines on random fleets, with members, messages and drivers that die."""
    found = []
    for seed in range(60):
        fuzz = FuzzSimulation(draw_case(seed))
        fuzz.run()
        found.append((seed, fuzz.simulation, *folded(fuzz.simulation)))
    return found


def test_it_comes_to_what_the_controller_knows(fuzzed):
    for seed, simulation, history, folds in fuzzed:
        run = simulation.controller.view
        counts = run.counts
        assert (history.version, history.step, history.failure) == (run.version, run.step, run.failure), seed
        assert history.trained == counts.trained, seed
        ended = {str(why): count for why, count in history.ended.items()}
        assert ended == counts.filtered_because | counts.failed_because, seed
        assert history.regenerated == counts.regenerated_trajectories, seed
        assert history.resumed_on_newer == counts.resumed_on_newer, seed
        assert history.surplus_samples == counts.surplus_trajectories, seed
        assert history.turns == counts.turns, seed
        assert folds.evaluations.done == list(run.evaluations), seed
        assert sum(sum(batch.lengths) for batch in folds.batches.trained) == counts.trained_tokens, seed
        assert +history.restarts == +Counter({role: run.restarts(role) for role in ROLES}), seed
        interruptions = folds.interruptions
        assert len(interruptions.of(MarkKind.REPACK)) == run.moves, seed
        assert len(interruptions.of(MarkKind.PULL)) == run.interrupting_pulls, seed
        assert sum(each.stopped for each in interruptions.of(MarkKind.EVICTION)) == run.evictions, seed
        lags = Counter(lag for batch in folds.batches.trained for lag in batch.at_consumption)
        assert lags == run.staleness_at_consumption, seed
        if run.finished:
            assert history.buffered == run.buffered, seed


def test_every_prompt_has_its_fate(fuzzed):
    for seed, simulation, history, folds in fuzzed:
        if simulation.controller.finished:
            became = prompts.PromptFates.of(history)
            assert (became.lost, became.open) == (0, 0), seed
            assert became.admitted == simulation.controller.view.counts.prompts, seed
            trained = sum(len(batch.lengths) for batch in folds.batches.trained)
            heard = [event for _, events, _ in simulation.log.instants for event in events]
            offered = sum(
                isinstance(event, c.Finished) or (isinstance(event, c.Turned) and event.done) for event in heard
            )
            ups = (event for _, events, _ in simulation.log.instants for event in events if isinstance(event, c.Up))
            held = sum(len(event.held) for event in ups)  # some finished unseen, while the driver was dead
            assert trained + sum(map(len, history.offcuts.values())) <= offered + held, seed


def test_the_cases_above_see_what_they_are_about(fuzzed):
    histories = [history for _, _, history, _ in fuzzed]
    resumed = sum(
        isinstance(event, c.Resumed) for _, s, _, _ in fuzzed for _, events, _ in s.log.instants for event in events
    )
    assert resumed > 3
    assert {fault.role for history in histories for fault in history.faults} >= {"replica", "trainer", "relay", "data"}
    reasons = {why for history in histories for why in history.ended}
    assert reasons >= {c.Why.NO_SIGNAL, c.Why.SURPLUS_GROUP, c.Why.NOT_SCORED}
    assert sum(history.resumed_on_newer for history in histories) > 0
    assert sum(len(folds.evaluations.done) for *_, folds in fuzzed) > 10


def test_what_can_not_come_back_is_forgotten():
    history, _ = folded(simulated(configured(STALEFLOW, steps=12)))
    assert history.trained == 48
    assert len(history.groups) <= 3 * 4
    assert all(group.version is None or group.version > 8 for group in history.groups.values())


def bare(events, commands):
    """A history in which so much happened at once."""
    history = History(spec())
    history.observe(1.0, events, commands)
    return history


def spec() -> PipelineSpec:
    return simulated(configured(steps=1)).fleet.spec


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (c.Reason(c.Why.STILL, numbers={"still_s": 31.0, "limit_s": 30.0}), "stood still for 31 s"),
        (c.Reason(c.Why.MACHINE, "10.0.0.7"), "machine 10.0.0.7 is given up"),
    ],
)
def test_a_member_that_the_controller_took_for_down_has_a_fault(reason, words):
    history = bare([c.Up("relay", "0"), c.Up("replica", "r0")], [c.Restart(1, "replica", "r0", reason=reason)])
    history.observe(9.0, [c.Up("replica", "r0")], [])
    (fault,) = history.faults
    assert (fault.at_s, fault.up_s, fault.member) == (1.0, 9.0, "r0")
    assert words in fault.reason


def test_who_was_told_to_stop_is_no_fault():
    history = bare([c.Up("replica", "r0")], [c.Stop(1, "replica", "r0", c.Reason(c.Why.PLANNED))])
    history.observe(2.0, [c.Down("replica", "r0", "it was told to stop", c.Cause.STOPPED)], [])
    assert history.faults == []
    assert ("replica", "r0") not in history.members


def test_a_drop_that_is_said_again_to_a_new_data_role_counts_once():
    dropped = ("7.0", "7.1")
    history = bare([], [c.Abort(1, dropped, reason=c.Reason(c.Why.OVER))])
    history.observe(2.0, [c.Up("data", "0")], [c.Abort(2, dropped, reason=c.Reason(c.Why.OVER))])
    history.observe(3.0, [c.Discarded(2)], [])
    assert history.ended == {c.Why.OVER: 1}
    assert history.unfinished == [0, 0]


def test_an_evaluation_is_no_training_trajectory():
    _, folds = folded(simulated(configured(steps=3)))
    assert len(folds.evaluations.done) >= 3
    assert {len(each.rewards) for each in folds.evaluations.done} == {12}
    trained = [length for batch in folds.batches.trained for length in batch.lengths]
    assert len(trained) == 3 * 16


def test_a_line_of_prompts_that_does_not_add_up_says_so():
    assert prompts.PromptFates(10, 4, {"no-signal": 3}, {"not-scored": 1}).lost == 2
    assert str(prompts.PromptFates(10, 4, {"surplus-group": 1, "expired": 2}, {}, open=3)) == (
        "10 admitted = 4 trained on + 3 filtered (2 too old, 1 surplus) + 0 failed + 3 still open; 0 lost"
    )


@pytest.mark.parametrize("batchwise", [False, True])
def test_a_batch_that_is_launched_later_counts_among_those_that_may_be_open(batchwise):
    admission = {"name": "one-step", "batchwise": batchwise}
    history = History(build_spec(configured({"admission": admission, "sync": "barrier", "buffer_prompts": None})))
    assert history.open_limit == history.room == 2 * 4
