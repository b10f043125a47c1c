"""Streamed training in random worlds: parts of a batch are trained on before it is complete, once, within the bound."""

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace import contracts as c
from tailrace.contracts.plugins import load
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.controller.ledger import GroupPhase
from tailrace.pipeline.errors import ControllerError, PolicyError
from tailrace.pipeline.policies.training import MiniBatch, Streamed
from tailrace.pipeline.roles.parts import merge_metrics
from tailrace.pipeline.spec import PipelineSpec
from tailrace.pipeline.testing import World, replay, replay_calls

STEPS, GROUPS, SAMPLES = 6, 5, 3


def policy(axis, name, **options):
    return load(f"tailrace.{axis}", name)(**options)


# Admission with its options, sync, the bound that holds.
SYSTEMS = {
    "on-policy": (("on-policy", {}), "barrier", 0),
    "one-step": (("one-step", {}), "barrier", 1),
    "inherent": (("inherent", {}), "on-idle", None),
    "inherent-1": (("inherent", {"bound": 1}), "on-idle", 1),
    "in-flight-cap": (("in-flight-cap", {"bound": 1}), "interrupting", None),
    "bounded-0": (("bounded", {"bound": 0}), "interrupting", 0),
    "bounded-2": (("bounded", {"bound": 2, "surplus": 2}), "interrupting", 2),
}


def spec(system="one-step", parts=3, sampler="fifo", filters=True, steps=STEPS):
    (admission, options), sync, _ = SYSTEMS[system]
    return PipelineSpec(
        admission=policy("admission", admission, **options),
        batching=policy(
            "batching",
            "redundant",
            samples=SAMPLES,
            surplus_samples=1,
            surplus_groups=options.get("surplus", 0),
            filter_equal_rewards=filters,
        ),
        routing=policy("routing", "least-loaded"),
        sync=policy("sync", sync),
        relocation=policy("relocation", "none"),
        training=policy("training", "streamed", parts=parts),
        provisioning=policy("provisioning", "static", count=3),
        recovery=policy("recovery", "isolate", max_restarts=1_000, trainer_restarts=1_000),
        sampler=policy("sampler", sampler),
        steps=steps,
        batch_groups=GROUPS,
        replica_batch=16,
    )


def check(world, system, parts):
    controller, counts = world.controller, world.controller.ledger.counts
    assert controller.finished, controller.failure
    assert counts.admitted == counts.trained + counts.filtered + counts.failed
    assert controller.learner.step == STEPS
    assert len(world.consumed) == STEPS * GROUPS * SAMPLES
    assert set(Counter(world.consumed.values()).values()) == {GROUPS * SAMPLES}
    bound = SYSTEMS[system][2]
    assert bound is None or max(world.staleness) <= bound
    staleness = controller.learner.staleness_at_consumption
    assert sum(staleness.values()) == len(world.consumed)
    sizes = [SAMPLES * len(part) for part in MiniBatch(parts).split(range(GROUPS))]
    trained: list[int] = []
    for command in (command for commands in world.commands for command in commands):
        if isinstance(command, c.Accumulate):
            trained.append(len(command.trajectories))
        elif isinstance(command, c.Step):
            assert len(command.mini_batches) == 1
            trained.append(len(command.mini_batches[0]))
        elif isinstance(command, c.Restart) and command.role == "trainer":
            trained.clear()
            continue
        assert trained == sizes[: len(trained)]
        if trained == sizes:
            trained.clear()


@given(
    seed=st.integers(0, 2**32),
    system=st.sampled_from(sorted(SYSTEMS)),
    parts=st.integers(1, 7),
    sampler=st.sampled_from(["fifo", "newest"]),
    grid_s=st.sampled_from([0.0, 1.0]),
)
@settings(max_examples=80, deadline=None)
def test_every_part_is_trained_on_once_within_the_bound(seed, system, parts, sampler, grid_s):
    world = World(Controller(spec(system, parts, sampler)), seed, grid_s=grid_s)
    world.run()
    check(world, system, parts)
    assert replay_calls(Controller(spec(system, parts, sampler)), world.calls) == world.commands


@given(seed=st.integers(0, 2**32), system=st.sampled_from(sorted(SYSTEMS)), parts=st.integers(2, 5))
@settings(max_examples=80, deadline=None)
def test_deaths_of_replicas_and_trainer_lose_no_part(seed, system, parts):
    world = World(
        Controller(spec(system, parts)), seed, kill_rate=0.03, trainer_kill_rate=0.06, scoring_failure_rate=0.02
    )
    world.run()
    check(world, system, parts)


@given(seed=st.integers(0, 2**32), at=st.integers(1, 400), system=st.sampled_from(sorted(SYSTEMS)))
@settings(max_examples=40, deadline=None)
def test_a_driver_that_dies_anywhere_goes_on(seed, at, system):
    world = World(Controller(spec(system)), seed, kill_rate=0.02)
    world.run(stop_after=at)
    if not world.controller.finished:
        rebuilt = Controller(spec(system))
        replay(rebuilt, world.log)
        assert json.dumps(rebuilt.state(), default=str) == json.dumps(world.controller.state(), default=str)
        world.controller = rebuilt
        world.deliver(world.crash())
        world.run()
    check(world, system, 3)


@pytest.mark.parametrize("system", ["on-policy", "one-step", "bounded-0", "inherent"])
def test_the_trainer_starts_before_the_batch_is_complete(system):
    world, early = World(Controller(spec(system)), 3), 0
    deliver = world.deliver

    def watch(*events):
        nonlocal early
        deliver(*events)
        ledger = world.controller.ledger
        for command in world.commands[-1]:
            if isinstance(command, c.Accumulate):
                early += len(ledger.consumed[command.version]) + len(ledger.buffered) < GROUPS

    world.deliver = watch
    world.run()
    assert early > 0


def up_to_the_first_part(seed=1):
    """A world whose trainer works on the first part of its first batch."""
    controller = Controller(spec("one-step"))
    world = World(controller, seed)
    world._at(0.0, c.Tick())
    while controller.learner.accumulating is None:
        events = world._together()
        world.deliver(*events)
        if any(isinstance(event, c.Tick) for event in events):
            world._tick()
    return world


def test_what_a_trainer_forgot_is_complete_and_goes_again():
    world = up_to_the_first_part()
    controller = world.controller
    first = list(controller.learner.accumulated)
    assert len(first) == 1
    assert all(controller.ledger.groups[group].phase is GroupPhase.TRAINING for group in first)
    progress = controller.progress()
    assert progress.consumed == 1
    controller.handle(c.Down("trainer", "0", "killed"), world.now)
    assert controller.learner.making is None
    again = controller.handle(c.Up("trainer", "0", 0), world.now)
    assert [set(command.trajectories) for command in again if isinstance(command, c.Accumulate)] == [
        {name for group in first for name in controller.ledger.groups[group].members}
    ]
    assert controller.learner.accumulated == first
    assert sum(controller.learner.staleness_at_consumption.values()) == len(first) * SAMPLES


def test_an_answer_to_another_part_is_refused():
    world = up_to_the_first_part()
    with pytest.raises(ControllerError, match=r"found Accumulated\(7\) while the trainer works on 1"):
        world.controller.handle(c.Accumulated(7, ()), world.now)
    world.controller.handle(c.Accumulated(1, ()), world.now)
    with pytest.raises(ControllerError, match="works on None"):
        world.controller.handle(c.Accumulated(1, ()), world.now)


def test_a_part_over_the_bound_ends_the_run():
    world = up_to_the_first_part()
    commands = world.controller.handle(c.Accumulated(1, (), {"staleness_max": 2.0}), world.now)
    assert [type(command) for command in commands] == [c.Fail]
    assert "over the bound of 1" in world.controller.failure


def test_a_sampler_that_chooses_nonsense_is_refused():
    class Twice:
        def pick(self, candidates, count):
            return [candidates[0].key] * (count + 1)

    controller = Controller(spec("inherent"))
    object.__setattr__(controller.spec, "sampler", Twice())
    with pytest.raises(ControllerError, match="the sampler chose"):
        World(controller, 0).run()


def test_the_parts_are_those_of_mini_batches():
    assert [list(part) for part in Streamed(3).split(range(5))] == [list(part) for part in MiniBatch(3).split(range(5))]
    assert Streamed(3).streams
    assert not MiniBatch(3).streams
    with pytest.raises(PolicyError, match="parts=0"):
        Streamed(0)


def test_metrics_of_parts_are_those_of_one_step():
    parts = [
        {
            "loss": 1.0,
            "entropy": 2.0,
            "reward_mean": 0.5,
            "tokens": 10.0,
            "trajectories": 2.0,
            "step_s": 1.0,
            "lr": 0.1,
        },
        {
            "loss": 3.0,
            "entropy": 6.0,
            "reward_mean": 1.0,
            "tokens": 30.0,
            "trajectories": 6.0,
            "step_s": 2.0,
            "lr": 0.2,
        },
    ]
    longest = [part | {"staleness_max": value} for part, value in zip(parts, [3.0, 1.0], strict=True)]
    assert merge_metrics(longest) == {
        "loss": 2.0,
        "entropy": 5.0,
        "reward_mean": 0.875,
        "tokens": 40.0,
        "trajectories": 8.0,
        "step_s": 3.0,
        "lr": 0.2,
        "staleness_max": 3.0,
    }
    assert merge_metrics(parts[:1]) == parts[0]
