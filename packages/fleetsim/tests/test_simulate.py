"""A whole run in virtual time, through the one call that users make."""

import pytest

from tailrace.contracts import Accumulate, Accumulated, Finished, Step, Stepped
from tailrace.fleetsim import simulate
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.pipeline.config.loading import merge, validate
from tailrace.pipeline.run.figures.rounds import RoundFigures

FLEET = {
    "model": "Qwen2.5-7B",
    "trainer": {"gpus": 4},
    "rollout": {"gpus": 4, "tensor_parallel": 1},
    "workload": {"response": [{"median": 900, "sigma": 0.9}], "correlation": 0.3},
    "warm_up": 1,
}
LAMINAR = {"admission": "inherent", "sync": "on-idle", "routing": "least-loaded", "relocation": "best-fit"}
SYSTEMS = {
    "laminar": LAMINAR,
    "synchronous": LAMINAR | {"admission": "on-policy", "sync": "barrier", "relocation": "none"},
    "one-step": LAMINAR | {"admission": "one-step", "sync": "barrier", "relocation": "none"},
    "stream": LAMINAR
    | {
        "admission": "one-step",
        "sync": "barrier",
        "relocation": "none",
        "training": {"name": "dynamic-batch", "parts": 4},
    },
    "partial": LAMINAR
    | {"admission": {"name": "in-flight-cap", "bound": 2}, "sync": "interrupting", "relocation": "none"},
    "staleflow": {
        "admission": {"name": "bounded", "bound": 2},
        "sync": "when-useful",
        "routing": "marginal-throughput",
        "relocation": "migration",
    },
}
BOUNDS = {"synchronous": 0, "one-step": 1, "stream": 1, "staleflow": 2}


def config(system, *, fleet=None, steps=4, faults=()):
    pipeline = {
        **SYSTEMS[system],
        "steps": steps,
        "prompts_per_step": 16,
        "samples_per_prompt": 8,
        "prompts_per_replica": 8,
    }
    content = {
        "app": "laminar",
        "pipeline": pipeline,
        "rollout": {"max_tokens": 8192},
        "fleet": {**FLEET, **(fleet or {})},
        "faults": list(faults),
    }
    return validate([("test", content)])


@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_trains_on_what_it_generates_once(system):
    result = simulate(config(system))
    assert result.failure is None
    assert result.trajectories == 4 * 16 * 8
    assert result.lost_trajectories == 0
    assert [batch.version for batch in result.batches] == [1, 2, 3, 4]
    assert result.tokens_per_s > 0
    assert result.staleness_max <= BOUNDS.get(system, 99)
    assert all(0 < share <= 1 for share in result.utilisation.values())


@pytest.mark.parametrize("system", SYSTEMS)
def test_the_same_seed_gives_the_same_bytes(system):
    first, again, other = simulate(config(system)), simulate(config(system)), simulate(config(system), seed=1)
    assert first.events.to_bytes() == again.events.to_bytes()
    assert first.events != other.events


@pytest.mark.parametrize("system", SYSTEMS)
def test_members_that_die_and_hang_lose_nothing(system):
    fleet = {"rollout": {"gpus": 4, "restart_s": 20.0}, "delays": {"hang_s": 30.0, "trainer_restart_s": 15.0}}
    faults = ("replica@30s", "trainer@step2", "hang:replica:2@90s")
    result = simulate(config(system, fleet=fleet, faults=faults))
    downs = [event for _, event in result.events if type(event).__name__ == "Down"]
    assert len(downs) >= 2
    assert result.failure is None
    assert result.lost_trajectories == 0
    assert result.staleness_max <= BOUNDS.get(system, 99)
    assert sum(batch.version == result.batches[-1].version for batch in result.batches) == 1


def test_what_is_measured_begins_after_the_warm_up():
    result = simulate(config("laminar", fleet={"steady": False}))
    events = [(now, event) for now, event in result.events if isinstance(event, Stepped)]
    measured = events[-1][0] - events[0][0]
    assert result.step_s == pytest.approx(measured / 3)
    tokens = sum(batch.tokens for batch in result.batches[1:])
    assert result.tokens_per_s == pytest.approx(tokens / measured)


def test_a_steady_run_does_not_run_dry_before_its_end():
    steady, ends = simulate(config("laminar")), simulate(config("laminar", fleet={"steady": False}))
    assert steady.trajectories == ends.trajectories
    assert steady.utilisation["replica"] > ends.utilisation["replica"] + 0.1


def test_generated_tokens_are_those_of_the_workload():
    result = simulate(config("laminar", fleet={"workload": {"response": 512, "prompt": 100}}))
    finished = [event for _, event in result.events if isinstance(event, Finished)]
    assert {event.tokens for event in finished} == {512}
    assert {batch.tokens for batch in result.batches} == {16 * 8 * 612}


def test_slow_machines_slow_the_run():
    slow = {"failures": {"slow_share": 1.0, "slow_speed": 0.5}}
    fast, slowed = simulate(config("synchronous")), simulate(config("synchronous", fleet=slow))
    assert slowed.step_s > 1.3 * fast.step_s


def test_failures_come_by_themselves_from_the_seed():
    often = {"failures": {"per_1000_gpu_days": 3e6}, "rollout": {"gpus": 4, "restart_s": 5.0}}
    result = simulate(config("laminar", fleet=often))
    assert any(type(event).__name__ == "Down" for _, event in result.events)
    assert result.lost_trajectories == 0
    assert result.events == simulate(config("laminar", fleet=often)).events


def test_a_mapping_is_a_configuration_too_and_settings_are_laid_over_it():
    mine = {"pipeline": {"steps": 5, "prompts_per_step": 16}, "rollout": {"max_tokens": 8192}, "fleet": FLEET}
    told = simulate(mine, settings=("pipeline.steps=2",))
    read = simulate(validate([("mine", {**mine, "pipeline": {"steps": 2, "prompts_per_step": 16}})]))
    assert told.events.to_bytes() == read.events.to_bytes()


def ends(system, every, **delays):
    """When each step began and ended, by version."""
    slow = {"gpus": 4, "mfu": 0.004}  # training is what the run waits for
    fleet = {"trainer": slow, "delays": delays, "steady": False, "warm_up": 0}
    content = config(system, fleet=fleet, steps=6).model_dump(mode="json")
    content["checkpoint"] = {**content["checkpoint"], "every": every}
    result = simulate(validate([("test", content)]))
    assert result.failure is None
    found = {}
    for now, *events in result.events:
        for event in events:
            if isinstance(event, Stepped):
                found[event.version] = (now - event.metrics["wall_s"], now)
    return found


@pytest.mark.parametrize("every", [1, 2])
def test_the_copy_of_a_checkpoint_blocks_the_trainer_and_what_is_written_behind_it_does_not(every):
    free, late, copied = (
        ends("laminar", every, **delays)
        for delays in ({"checkpoint_s": 0.0}, {"checkpoint_s": 30.0}, {"copy_s": 3.0, "checkpoint_s": 30.0})
    )
    for version in range(1, 6):
        between = {name: each[version + 1][0] - each[version][1] for name, each in (("free", free), ("copied", copied))}
        blocks = 3.0 if version % every == 0 else 0.0
        assert between["copied"] - between["free"] == pytest.approx(blocks, abs=1e-6), version
    assert late[6][1] == pytest.approx(free[6][1])


@pytest.mark.parametrize("system", ["laminar", "stream"])
def test_a_step_takes_as_long_as_its_own_command(system):
    """A real trainer counts no more: what it trained on before, as parts of the batch, has seconds of its own."""
    given, parts = {}, []

    class Watching:
        def observe(self, now, events, commands, run):
            for event in events:
                if isinstance(event, Stepped | Accumulated):
                    assert 0 < event.metrics["wall_s"] <= now - given[event.answers] + 1e-9
                    parts.append(isinstance(event, Accumulated))
            given.update({command.seq: now for command in commands if isinstance(command, Step | Accumulate)})

        def tick(self, now, executor):
            pass

    simulate(config(system), observer=Watching())
    assert parts
    assert any(parts) is (system == "stream")


@pytest.mark.parametrize("route_s", [0.0, 0.4])
def test_what_loses_a_race_was_generated_all_the_same(route_s):
    """Each token is of a response that is complete, or of one that was dropped before it was."""
    rounds = {"batching": "tail-batching", "admission": "on-policy", "sync": "barrier", "relocation": "none"}
    fleet = {"delays": {"route_s": route_s, "report_s": 0.01}, "steady": False, "warm_up": 0}
    content = config("laminar", fleet=fleet, steps=3).model_dump(mode="json")
    drawn = validate([("test", merge(content, {"pipeline": rounds}))])
    built = build_fleet(drawn)
    figures = RoundFigures(built.spec)

    class Folding:
        def observe(self, now, events, commands, run):
            figures.observe(now, events, commands)

        def tick(self, now, executor):
            pass

    simulation = Simulation(built, observers=(Folding(),))
    simulation.run()
    made = sum(replica.engine.tokens for replica in simulation.models.replicas.values())
    assert figures.wasted > 0
    assert figures.generated == pytest.approx(made, rel=0.02 if route_s else 1e-9)
