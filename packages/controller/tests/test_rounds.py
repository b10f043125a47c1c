"""Tail batching in the controller: who is kept, who is deferred, and what a crash leaves of a round."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import Scripted, of, policy, spec

from tailrace import contracts as c
from tailrace.controller.controller import Controller
from tailrace.controller.errors import PolicyError
from tailrace.controller.policies.batching import Redundant
from tailrace.controller.policies.tail_batching import TailBatching
from tailrace.controller.provisioning_history import RoundHistory


def tail(admission="on-policy", steps=6, samples=2, sample_factor=1.0, prompts=2, more=None, **options):
    batching = policy(
        "batching",
        "tail-batching",
        prompts=prompts,
        samples=samples,
        prompt_factor=1.5,
        sample_factor=sample_factor,
        **options,
    )
    own = {"provisioning": policy("provisioning", "static", count=1), **(more or {})}
    return spec(
        admission=policy("admission", admission), batching=batching, sync=policy("sync", "barrier"), steps=steps,
        batch_groups=prompts, replica_batch=64, buffer_groups=None, **own,
    )  # fmt: skip


def begun(**options):
    run = Scripted(tail(**options))
    run.go(c.Tick(), leave=(c.Route,))
    return run


def finish(run, *groups, samples=(0, 1), leave=(c.Route,)):
    names = [f"{group}.{sample}" for group in groups for sample in samples]
    return run.go(*(c.Finished("r0", name, 10) for name in names), leave=leave)


def routed(commands):
    """The prompt of each group that is routed, in order."""
    return list({ref.group: ref.prompt for route in of(c.Route, commands) for ref in route.trajectories}.values())


def test_a_short_round_keeps_the_first_complete_groups_and_defers_the_rest():
    run = begun()
    assert routed(run.given) == [0, 1, 2]
    finish(run, 2)
    assert not of(c.Step, run.given)
    given = finish(run, 0)
    (step,) = of(c.Step, given)
    assert {name.partition(".")[0] for part in step.mini_batches for name in part} == {"0", "2"}
    (abort,) = of(c.Abort, given)
    assert (abort.trajectories, abort.reason.why) == (("1.0", "1.1"), c.Why.DEFERRED)
    assert (run.view.counts.deferred, run.view.counts.filtered) == (1, 0)
    assert routed(given) == [3, 4, 5]  # the next round, by the new weights
    assert list(run.view.counts.queued) == [1]
    given = finish(run, 3, 4)
    assert not run.view.counts.queued
    assert routed(given) == [1, 5]  # a long round of those that were late, in order of launch
    finish(run, 6)
    assert len(of(c.Step, run.given)) == 2  # it waits for all
    finish(run, 7)
    assert len(of(c.Step, run.given)) == 3
    assert run.view.counts.deferred == 2


def test_a_prompt_that_waits_for_a_replica_when_its_round_ends_is_deferred_too():
    run = Scripted(dataclasses.replace(tail(), replica_batch=4))
    run.go(c.Tick(), leave=(c.Route,))
    assert routed(run.given) == [0, 1]
    finish(run, 0, 1)
    assert list(run.view.counts.queued) == [2]


def test_samples_race_for_the_end_of_generation_and_not_for_their_scores():
    run = begun(sample_factor=1.5)
    given = finish(run, 0, samples=(2, 0), leave=(c.Route, c.Score))
    (abort,) = of(c.Abort, given)
    assert (abort.trajectories, abort.reason.why) == (("0.1",), c.Why.SURPLUS_SAMPLE)
    run.go(c.Scored("0.0", 1.0), leave=(c.Route,))
    assert run.view.counts.completed == 0  # its other sample has no score yet, and is not replaced by a quicker one
    run.go(c.Scored("0.2", 0.0), leave=(c.Route,))
    assert run.view.counts.completed == 1
    assert run.view.counts.surplus_trajectories == 1


def test_a_filtered_prompt_is_done_and_another_takes_its_place():
    run = begun(filter_equal_rewards=True)
    run.reward = lambda name: float(name in ("1.0", "2.0", "3.0"))
    assert routed(finish(run, 0)) == [3]
    finish(run, 1, 2)
    (step,) = of(c.Step, run.given)
    assert {name.partition(".")[0] for part in step.mini_batches for name in part} == {"1", "2"}
    assert (run.view.counts.filtered, run.view.counts.deferred) == (1, 1)


@pytest.mark.parametrize("batching", [Redundant, TailBatching])
def test_rewards_that_differ_by_rounding_are_filtered(batching):
    source = batching(filter_equal_rewards=True).open()
    assert not source.keeps(0, [0.1 + 0.2, 0.3])
    assert not source.keeps(0, [0.1 + 0.2 - 0.3, 0.0])
    assert source.keeps(0, [0.3, 0.301])


@pytest.mark.parametrize("wrong", [{"epoch_prompts": -1}, {"deferrals": -1}])
def test_counts_below_nothing_are_refused(wrong):
    with pytest.raises(PolicyError, match="expected at least 0"):
        TailBatching(**wrong)
    assert policy("batching", "tail-batching", **dict.fromkeys(wrong, 0))


def test_noise_is_drawn_anew_or_is_the_same():
    with pytest.raises(PolicyError, match="found redraw='often', expected 'fresh' or 'same-noise'"):
        policy("batching", "tail-batching", redraw="often")
    assert not TailBatching(redraw="fresh").draws_again()
    assert TailBatching(redraw="same-noise").draws_again()


def test_the_last_round_of_an_epoch_is_smaller():
    run = Scripted(tail(steps=3, prompts=4, epoch_prompts=9, epoch_end="flush"))
    run.go(c.Tick())
    sizes = [len(part) // 2 for step in of(c.Step, run.given) for part in step.mini_batches]
    assert sizes == [4, 4, 1]
    assert run.view.finished


def test_one_round_ahead_is_at_most_one_version_old():
    run = begun(admission="one-step", steps=4)
    given = finish(run, 0, 1, leave=(c.Route, c.Step))
    assert routed(given) == [3, 4, 5]  # while the first batch is trained on
    finish(run, 3, 4, leave=(c.Route, c.Step))
    assert len(of(c.Step, run.given)) == 1
    assert routed(run.given) == [0, 1, 2, 3, 4, 5]  # a third round would be two versions old
    run.catch_up(c.Step, leave=(c.Route,))
    assert len(of(c.Step, run.given)) >= 2
    assert max(run.view.staleness_at_consumption) <= 1


def test_groups_that_a_fall_back_made_too_old_come_first_in_the_next_long_round():
    run = begun(more={"checkpoint_every": 2, "keep_checkpoints": 1})
    finish(run, 0, 1, leave=(c.Route,))  # step 1, which no checkpoint holds
    finish(run, 3, leave=(c.Route,))
    before = run.view.counts.filtered
    run.down("trainer", leave=(c.Route,))
    counts = run.view.counts
    assert counts.filtered == before == 0
    # Prompts 0 and 1 were trained on in vain; they, and what ran at the version that is gone, are at the head.
    state = run.controller.source.state()
    waiting = [*state["rounds"]["queue"], *state["pending"]]
    asked = routed([command for command in run.given if isinstance(command, c.Route)][-3:])
    assert {0, 1} <= {*waiting, *asked}
    run.catch_up()
    assert run.view.finished
    assert run.view.counts.trained == 6 * 2


@pytest.mark.parametrize("crash_after", range(0, 40, 3))
def test_a_crash_of_the_driver_loses_nothing_of_a_round(crash_after):
    """The log has everything: kind, members, complete groups, and the order of the queue."""
    run = Scripted(tail(steps=5))
    run.go(c.Tick(), leave=(c.Route,))
    for _ in range(crash_after):
        route = next((command for command in run.left if isinstance(command, c.Route)), None)
        if route is None:
            break
        ref = route.trajectories[-1]
        rest = route.trajectories[:-1]
        run.left.remove(route)
        if rest:
            run.left.append(c.Route(route.seq, route.replica, rest))
        if run.controller.ledger.get(ref.trajectory) is not None:
            run.go(c.Finished("r0", ref.trajectory, 10), leave=(c.Route,))
    replayed = Controller(tail(steps=5))
    for now, events, commands in run.calls:
        assert replayed.handle_all(events, now) == commands
    assert replayed.source.state() == run.controller.source.state()
    before = replayed.source.state()["rounds"]
    run.controller, run.left = replayed, []
    run.held = tuple(state.id for state in replayed.ledger.trajectories.values() if state.phase in ("done", "scored"))
    run.go(c.Resumed(checkpoints=tuple(range(10))), leave=(c.Route,))
    after = run.controller.source.state()["rounds"]
    assert (after["queue"], after["kind"], after["members"]) == (before["queue"], before["kind"], before["members"])
    run.catch_up()
    assert run.view.finished
    assert run.view.counts.trained == 5 * 2


def test_policies_that_do_not_fit_rounds_are_refused():
    with pytest.raises(PolicyError, match="expected one that knows rounds"):
        Controller(tail(admission="inherent"))
    with pytest.raises(PolicyError, match="parts of a fixed size"):
        Controller(tail(more={"training": policy("training", "dynamic-batch", parts=2)}))


@dataclasses.dataclass(frozen=True)
class Watching(c.ProvisioningPolicy):
    """Starts one replica, and notes what it is asked with."""

    seen: list = dataclasses.field(default_factory=list, compare=False)

    def round_milestones(self):
        return (0.5, 0.75)

    def plan(self, view):
        self.seen.append(view)
        return () if view.of("replica") else [c.StartReplica()]


def test_admission_hears_of_batches_that_are_there_again_before_it_takes_in_what_has_started():
    run = begun()
    finish(run, 0, 2, leave=(c.Route, c.Step))
    gate: Any = run.controller.gate
    heard: list[Any] = []
    rounds, reset = gate.rounds, gate.reset
    gate.rounds = lambda sizes, closed: heard.append(list(sizes)) or rounds(sizes, closed)
    gate.reset = lambda version, started: heard.append(len(started)) or reset(version, started)
    run.down("trainer", leave=(c.Route, c.Step))
    assert heard[:2] == [[2, 3], 2]  # the undone batch, the next round; groups that have started


def test_provisioning_is_asked_at_milestones_and_sees_the_rounds():
    policy_ = Watching()
    run = begun(more={"provisioning": policy_})
    policy_.seen.clear()
    finish(run, 0, samples=(0,), leave=(c.Route, c.Score))
    assert not policy_.seen  # a quarter of what the round keeps
    run.go(c.Snapshot("r0", 0.5, 5, 0, 1, 0, 99, preemptions=3), leave=(c.Route, c.Score))
    finish(run, 1, samples=(0,), leave=(c.Route, c.Score))
    (half,) = policy_.seen
    assert (half.round.kind, half.round.generated, half.round.samples, half.round.size) == ("short", 2, 4, 2)
    assert (half.lengths, half.loads[0].preemptions, half.rounds) == ((10, 10), 3, ())
    run.now = 7.0
    finish(run, 0, 1, samples=(1,), leave=(c.Route,))
    run.catch_up(c.Score, leave=(c.Route,))
    closed = policy_.seen[-1]
    assert [(past.number, past.kind, past.size, past.preemptions) for past in closed.rounds] == [(0, "short", 2, 3)]
    assert closed.rounds[0].generation_s == 7.0


def test_a_policy_that_watches_rounds_is_asked_as_one_begins_passes_a_milestone_and_ends():
    member = SimpleNamespace(tp=2)
    replica = SimpleNamespace(preempted=3, member=member)
    fleet = SimpleNamespace(replicas={"r0": replica}, up=lambda: [replica])
    watches = SimpleNamespace(round_milestones=lambda: (0.5, 0.75))
    state: Any = SimpleNamespace(spec=SimpleNamespace(provisioning=watches), fleet=fleet, now=4.0)
    seen = {"number": 0, "kind": "long", "size": 6, "samples": 8, "generated": 0}
    rounds: Any = SimpleNamespace(used=True, view=lambda: seen and SimpleNamespace(**seen))
    history = RoundHistory(state, rounds)
    assert [history.look(), history.look()] == [True, False]
    for generated, asked in ((3, False), (4, True), (5, False), (8, True)):
        seen["generated"] = generated
        assert history.look() is asked, generated
    state.now, replica.preempted = 9.0, 5
    seen |= {"number": 1, "generated": 0}
    assert history.look()
    seen["generated"] = 4
    assert history.look()  # it counts anew
    state.now, replica.preempted, seen = 10.0, 6, None
    assert [history.look(), history.look()] == [True, False]
    assert list(history.records) == [c.RoundRecord(0, "long", 6, 2, 2, 5.0), c.RoundRecord(1, "long", 6, 2, 1, 1.0)]


def test_a_prompt_that_cannot_be_scored_comes_again_as_often_as_the_policy_says():
    source = TailBatching(prompts=1, samples=2, prompt_factor=1.0, sample_factor=1.0, deferrals=2).open()
    progress = c.Progress(0, 0, 0, 0, 0, 0, 0, 1, 99)
    fates = []
    for group in range(10):
        launch = source.next(progress)
        source.launched(group, launch)
        if launch.prompt == 0:
            fates.append(source.ended(group, c.GroupEnd.UNSCORED))
        else:
            source.completed(group)
            assert source.ended(group, c.GroupEnd.TRAINED) is c.PromptFate.DONE
    assert fates == [c.PromptFate.AGAIN, c.PromptFate.AGAIN, c.PromptFate.DONE]
