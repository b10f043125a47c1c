"""What is folded beside the view, against slow walks over the instants, whatever breaks; and every prompt has its fate."""

from collections import Counter
from types import SimpleNamespace

import pytest

from tailrace import contracts as c
from tailrace.controller.trajectories import Phase, TrajectoryState
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.trial import FuzzSimulation
from tailrace.report.figures import prompts
from tailrace.report.fold.folds import Offcuts
from tailrace.report.fold.interruptions import MarkKind
from tailrace.report.fold.outages import Outages

from .conftest import configured, folded, simulated

SURPLUS = c.Why.SURPLUS_SAMPLE
SMALL = (1, 2, 4, 7, 10, 12, 13, 19, 20, 21, 22, 23, 24, 26, 31, 33, 35, 39)  # with all that the tests ask for


@pytest.fixture(scope="module")
def fuzzed(request):
    """Random pipelines on random fleets, with members, messages and drivers that die."""
    found = []
    for seed in range(60) if request.config.getoption("deep") else SMALL:
        fuzz = FuzzSimulation(draw_case(seed))
        fuzz.run()
        found.append((seed, fuzz.simulation, folded(fuzz.simulation)))
    return found


def test_what_is_folded_is_what_the_controller_counts(fuzzed):
    for seed, simulation, folds in fuzzed:
        run = simulation.controller.view
        assert folds.run.counts == run.counts, seed
        assert list(folds.run.evaluations) == list(run.evaluations), seed
        assert sum(sum(batch.lengths) for batch in folds.batches.trained) == run.counts.trained_tokens, seed
        interruptions = folds.interruptions
        assert len(interruptions.of(MarkKind.REPACK)) == run.moves, seed
        assert len(interruptions.of(MarkKind.PULL)) == run.interrupting_pulls, seed
        assert sum(each.stopped for each in interruptions.of(MarkKind.EVICTION)) == run.evictions, seed
        lags = Counter(lag for batch in folds.batches.trained for lag in batch.at_consumption)
        assert lags == run.staleness_at_consumption, seed
        assert sum(folds.turns.answers.values()) >= run.counts.sessions_restored + run.counts.sessions_replayed, seed


def test_every_prompt_has_its_fate(fuzzed):
    for seed, simulation, folds in fuzzed:
        became = prompts.PromptFates.of(folds.run)
        assert became.lost == 0, seed
        assert became.admitted == simulation.controller.view.counts.prompts, seed
        assert became.open == 0 or not simulation.controller.finished, seed


def test_what_was_dropped_was_generated_or_not(fuzzed):
    """Each trajectory that the log has dropped is counted once: as finished with the tokens that it ended with, or else not."""
    for seed, simulation, folds in fuzzed:
        ended, dropped, whole = {}, Counter(), 0
        pending = {}
        for _, events, commands in simulation.log.instants:
            for event in events:
                if isinstance(event, c.Finished) or (isinstance(event, c.Turned) and event.done):
                    ended.setdefault(event.trajectory, set()).add(event.tokens)
                elif isinstance(event, c.Discarded):
                    pending.pop(event.answers, None)
            for command in commands:
                anew = isinstance(command, c.Abort) and command.reason.why in (
                    c.Why.VERSION_GONE, c.Why.EVALUATION, c.Why.SESSION_LOST, c.Why.TASK_RESTART,
                )  # fmt: skip
                if isinstance(command, c.Abort) and not anew:
                    if command.trajectories not in pending.values():  # else it is said again, to a new data role
                        dropped[command.reason.why] += len(command.trajectories)
                        whole += len(command.trajectories)
                    pending[command.seq] = command.trajectories
        found = folds.offcuts
        assert sum(map(len, found.finished.values())) + len(found.unfinished) == whole, seed
        lengths = set().union(*ended.values()) if ended else set()
        ups = (event for _, events, _ in simulation.log.instants for event in events if isinstance(event, c.Up))
        if not any(event.held for event in ups):  # else some finished unseen, while the driver was dead
            assert lengths >= {tokens for each in found.finished.values() for tokens in each}, seed
        assert all(len(each) <= dropped[why] for why, each in found.finished.items()), seed


def test_what_environments_said_is_no_length_of_what_was_dropped():
    """Two end in the instant in which they are dropped, one had ended before, and one never does."""

    def answered(name, tokens=14, phase=Phase.RUNNING):
        state = TrajectoryState(name, 0, 0, c.Purpose.TRAIN, "", 0, phase)
        state.ends_turn(10)
        state.is_answered(14)
        state.tokens = tokens
        return state

    asked = TrajectoryState("asked", 0, 1, c.Purpose.TRAIN, "", 0, Phase.IN_ENVIRONMENT)
    asked.ends_turn(10)
    states = [answered("ends"), asked, answered("ended", 20, Phase.DONE), answered("never")]
    run = SimpleNamespace(brought=SimpleNamespace(dropped=[(states, c.Reason(c.Why.SURPLUS_SAMPLE))]))
    offcuts = Offcuts(run)  # type: ignore[arg-type]  # it reads no more
    for event in (c.Finished("r0", "ends", 20), c.Turned("asked", 1, 15, done=True)):
        offcuts.hears[type(event)](1.0, event)
    offcuts.settle()
    assert offcuts.finished == {SURPLUS: [16, 10, 16]}
    assert offcuts.unfinished == [10]


def test_outages_are_what_the_log_says(fuzzed):
    """A death that somebody noticed is one; so is a member that the controller took for dead. Each ends at the next `Up`."""
    for seed, simulation, folds in fuzzed:
        named, ups = set(), set()
        for now, events, commands in simulation.log.instants:
            for one in (*events, *commands):
                if isinstance(one, c.Down | c.Restart | c.Stop):
                    named.add((now, one.role, one.id))
                elif isinstance(one, c.Up):
                    ups.add((now, one.role, one.id))
        for outage in folds.outages.all:
            assert (outage.at_s, outage.role, outage.member) in named, (seed, outage)
            if outage.up_s is not None:
                assert outage.up_s >= outage.at_s, (seed, outage)
                assert (outage.up_s, outage.role, outage.member) in ups, (seed, outage)
    roles = {outage.role for *_, folds in fuzzed for outage in folds.outages.all}
    assert roles >= {"replica", "trainer", "relay", "data"}


def test_the_cases_above_see_what_they_are_about(fuzzed):
    resumed = sum(
        isinstance(event, c.Resumed) for _, s, _ in fuzzed for _, events, _ in s.log.instants for event in events
    )
    assert resumed > 3
    reasons = {why for *_, folds in fuzzed for why in folds.offcuts.finished}
    assert reasons >= {c.Why.NO_SIGNAL, c.Why.SURPLUS_GROUP, SURPLUS}
    assert sum(folds.run.counts.resumed_on_newer for *_, folds in fuzzed) > 0
    assert sum(len(folds.run.evaluations) for *_, folds in fuzzed) > 10


def heard(*instants):
    """The outages of instants: when, events and commands."""
    outages = Outages()
    for now, *ones in instants:
        for one in ones:
            if type(one) in outages.hears:
                outages.hears[type(one)](now, one)
    return outages.all


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (c.Reason(c.Why.STILL, numbers={"still_s": 31.0, "limit_s": 30.0}), "stood still for 31 s"),
        (c.Reason(c.Why.MACHINE, "10.0.0.7"), "machine 10.0.0.7 is given up"),
    ],
)
def test_a_member_that_the_controller_took_for_down_has_an_outage(reason, words):
    restart = c.Restart(1, "replica", "r0", reason=reason)
    (outage,) = heard((1.0, c.Up("replica", "r0"), restart), (9.0, c.Up("replica", "r0")))
    assert (outage.at_s, outage.up_s, outage.member) == (1.0, 9.0, "r0")
    assert words in outage.reason


def test_who_was_told_to_stop_has_none():
    stop = c.Stop(1, "replica", "r0", c.Reason(c.Why.PLANNED))
    down = c.Down("replica", "r0", "it was told to stop", c.Cause.STOPPED)
    assert heard((1.0, c.Up("replica", "r0"), stop), (2.0, down)) == []


def test_an_evaluation_is_no_training_trajectory():
    folds = folded(simulated(configured(steps=3)))
    assert len(folds.run.evaluations) >= 3
    assert {len(each.rewards) for each in folds.run.evaluations} == {12}
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
    folds = folded(simulated(configured({"admission": admission, "sync": "barrier", "buffer_prompts": None}, steps=1)))
    assert folds.run.most_open == 2 * 4
