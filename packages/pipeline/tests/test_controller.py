"""The controller in random worlds: nothing is lost, nothing is trained on twice, nothing hangs, and replay is exact."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.contracts.plugins import load
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.controller.evaluations import EvaluationPlan
from tailrace.pipeline.spec import PipelineSpec
from tailrace.pipeline.testing import World, replay, replay_calls


def spec(**changes):
    def policy(axis, name, **options):
        return load(f"tailrace.{axis}", name)(**options)

    base = PipelineSpec(
        admission=policy("admission", "inherent"),
        batching=policy("batching", "plain", samples=4),
        routing=policy("routing", "least-loaded"),
        sync=policy("sync", "on-idle"),
        relocation=policy("relocation", "best-fit", kv_threshold=0.99, roofline_batch=64),
        training=policy("training", "mini-batch", parts=2),
        provisioning=policy("provisioning", "static", count=3),
        recovery=policy("recovery", "isolate", max_restarts=1_000, trainer_restarts=1_000),
        sampler=policy("sampler", "fifo"),
        steps=6,
        batch_groups=4,
        replica_batch=16,
        buffer_groups=16,
        evaluation=EvaluationPlan(size=10, every=3, modes=("sampled",), first=("greedy",), last=("greedy",)),
    )
    return replace(base, **changes)


def check_complete(world, steps=6, groups=4, samples=4):
    controller = world.controller
    assert controller.finished, controller.failure
    counts = controller.ledger.counts
    assert counts.admitted == counts.trained + counts.filtered + counts.failed
    assert len(world.consumed) == steps * groups * samples
    assert controller.learner.step == steps
    assert {(r.mode) for r in controller.evaluations.results} == {"sampled", "greedy"}


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_every_group_is_trained_exactly_once(seed):
    world = World(Controller(spec()), seed)
    world.run()
    check_complete(world)


@given(seed=st.integers(0, 2**32), keep=st.sampled_from([1, 2, 1_000]), every=st.sampled_from([1, 3]))
@settings(max_examples=60, deadline=None)
def test_deaths_of_replicas_and_trainer_lose_nothing(seed, keep, every):
    world = World(
        Controller(spec(checkpoint_every=every)), seed, kill_rate=0.05, trainer_kill_rate=0.02, keep_versions=keep
    )
    world.run()
    check_complete(world)


@given(seed=st.integers(0, 2**32), grid_s=st.sampled_from([0.5, 1.0, 5.0]))
@settings(max_examples=40, deadline=None)
def test_events_may_arrive_together(seed, grid_s):
    world = World(Controller(spec()), seed, grid_s=grid_s, kill_rate=0.02, trainer_kill_rate=0.01)
    world.run()
    check_complete(world)
    assert replay_calls(Controller(spec()), world.calls) == world.commands


def test_what_finished_together_is_scored_by_one_command_in_order():
    world = World(Controller(spec()), 4, grid_s=2.0)
    world.run()
    several = 0
    for (_, events), commands in zip(world.calls, world.commands, strict=True):
        scores = [command for command in commands if isinstance(command, c.Score)]
        assert len(scores) <= 1
        if scores:
            finished = [event.trajectory for event in events if isinstance(event, c.Finished)]
            assert list(scores[0].trajectories) == [name for name in finished if name in scores[0].trajectories]
            several += len(scores[0].trajectories) > 1
    assert several > 0


def test_nothing_is_scored_whose_group_ends_with_the_events_that_came_with_it():
    batching = load("tailrace.batching", "redundant")(samples=1, surplus_samples=1)
    controller = Controller(spec(batching=batching, steps=1, evaluation=EvaluationPlan()))
    events = [c.Tick(), c.Up("trainer", "0", 0), c.Published(0), c.Up("replica", "r0"), c.Pulled("r0", 0)]
    for event in (*events, c.Finished("r0", "0.0", 3)):
        controller.handle(event, 0.0)
    commands = controller.handle_all((c.Finished("r0", "0.1", 9), c.Scored("0.0", 1.0)), 0.0)
    assert not [command for command in commands if isinstance(command, c.Score)]
    assert [command.trajectories for command in commands if isinstance(command, c.Abort)] == [("0.1",)]


@given(seed=st.integers(0, 2**32), at=st.integers(1, 400))
@example(seed=4000, at=400)  # two evaluations are stranded on different versions
@settings(max_examples=60, deadline=None)
def test_a_driver_that_dies_anywhere_goes_on_from_its_log(seed, at):
    world = World(Controller(spec()), seed, kill_rate=0.02)
    world.run(stop_after=at)
    if not world.controller.finished:
        log = list(world.log)
        resumed = world.crash()
        fresh = Controller(spec())
        replay(fresh, log)
        assert fresh.state() == world.controller.state()
        world.controller = fresh
        world.deliver(resumed)
        world.run()
    check_complete(world)


def test_a_broken_verifier_is_reported_and_never_a_zero_reward():
    failed = 0
    for seed in range(20):
        world = World(Controller(spec(scoring_attempts=2)), seed, scoring_failure_rate=0.2)
        world.run()
        check_complete(world)
        failed += world.controller.ledger.counts.failed
    assert failed > 0


def test_a_verifier_that_always_breaks_ends_the_run_with_its_reason():
    world = World(Controller(spec(failed_groups_limit=8)), 1, scoring_failure_rate=1.0)
    world.run()
    assert "could not be scored" in world.controller.failure
    assert "verifier broke" in world.controller.failure


def test_repack_moves_trajectories_and_keeps_their_version():
    moves = 0
    for seed in range(10):
        world = World(Controller(spec(steps=12)), seed)
        world.run()
        check_complete(world, steps=12)
        moves += world.controller.moves
    assert moves > 0
    assert world.controller.ledger.counts.regenerated_trajectories == 0


@pytest.mark.parametrize(("name", "bound"), [("on-policy", 0), ("one-step", 1)])
def test_lockstep_admissions_keep_their_bound(name, bound):
    controller = Controller(spec(admission=load("tailrace.admission", name)(), sync=load("tailrace.sync", "barrier")()))
    world = World(controller, 3)
    world.run()
    check_complete(world)
    assert max(controller.learner.staleness_at_consumption) <= bound


def test_replay_is_exact_at_every_prefix_of_a_recorded_run():
    small = spec(steps=2, batch_groups=2, replica_batch=8, evaluation=EvaluationPlan(size=3))
    world = World(Controller(small), 11, kill_rate=0.03)
    world.run()
    log = json.loads(json.dumps([[now, c.encode(event)] for now, event in world.log]))
    events = [(now, c.decode(event)) for now, event in log]
    assert len(events) > 60
    for prefix in range(1, len(events), 1):
        rebuilt = Controller(small)
        commands = replay(rebuilt, events[:prefix])
        assert commands == world.commands[:prefix]
        assert rebuilt.handle(events[prefix][1], events[prefix][0]) == world.commands[prefix]


def test_recovery_policy_may_end_the_run():
    controller = Controller(spec(recovery=load("tailrace.recovery", "restart-task")()))
    world = World(controller, 5, kill_rate=0.2)
    world.run()
    assert controller.failure is not None
    assert "replica" in controller.failure


def pulls(commands):
    return [command.version for command in commands if isinstance(command, c.Pull)]


def failed(controller, now):
    return controller.handle_all([c.PullFailed("r0", 0, "the relay is gone")], now)


def one_replica_pulling():
    static = load("tailrace.provisioning", "static")(count=1)
    controller = Controller(spec(provisioning=static))
    started = [c.Tick(), c.Up("trainer", "0", 0), c.Published(0), c.Up("replica", "r0")]
    assert pulls(controller.handle_all(started, 0.0)) == [0]
    return controller


def test_a_pull_that_failed_is_tried_again_later_and_later():
    controller = one_replica_pulling()
    now = 1.0
    for pause_s in (0.5, 1.0, 2.0, 4.0):
        assert not pulls(failed(controller, now))
        assert not pulls(controller.handle(c.Tick(), now + pause_s - 0.1))
        now += pause_s
        assert pulls(controller.handle(c.Tick(), now)) == [0]
    failed(controller, now)
    assert controller.over
    assert controller.failure is not None
    assert "r0 failed 5 times to pull version 0: the relay is gone" in controller.failure


def test_a_relay_that_went_down_clears_the_replicas_that_could_not_pull():
    controller = one_replica_pulling()
    now = 1.0
    for _ in range(12):  # each relay dies while it is pulled from
        failed(controller, now)
        controller.handle(c.Down("relay", "0", "killed"), now + 0.1)
        assert pulls(controller.handle(c.Tick(), now + 0.5)) == [0]
        now += 1.0
    assert not controller.over
