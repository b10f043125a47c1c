"""A whole run on a machine that was measured."""

import pytest
from profile_machine import machine

from tailrace.fleetsim import simulate
from tailrace.fleetsim.build import build_fleet
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.profile.machine import SharingPart
from tailrace.fleetsim.profile.machine_file import machine_toml
from tailrace.pipeline.config.target import configuration

SMALL = (
    "pipeline.steps=6",
    "pipeline.prompts_per_step=4",
    "pipeline.samples_per_prompt=4",
    "pipeline.prompts_per_replica=4",
    "task.held_out_size=16",
    "evaluation.every=2",
)


@pytest.fixture
def settings(tmp_path):
    def written(*more, **changes):
        path = tmp_path / "small.toml"
        path.write_text(machine_toml(machine(**changes)))
        return (*SMALL, f"fleet.profile={path}", *more)

    return written


@pytest.mark.parametrize("app", ["laminar", "staleflow"])
def test_a_run_ends_with_all_its_evaluations(app, settings):
    from tailrace.fleetsim.simulator import Simulation

    simulation = Simulation(build_fleet(configuration(app, settings=settings()), seed=3))
    simulation.run()
    evaluated = simulation.controller.view.evaluations
    assert simulation.controller.failure is None
    assert {result.mode for result in evaluated} == {"sampled", "greedy", "forced", "forced-greedy"}
    assert {result.version for result in evaluated if result.mode == "sampled"} >= {0, 6}
    assert all(len(result.rewards) == 16 for result in evaluated)
    assert simulation.controller.view.step == 6


def test_evaluations_occupy_replicas(settings):
    without = simulate("laminar", settings=settings("evaluation.every=0", "fleet.warm_up=0"))
    often = simulate("laminar", settings=settings("evaluation.every=1", "fleet.warm_up=0", "task.held_out_size=128"))
    assert often.step_s > 1.1 * without.step_s


def test_the_same_seed_gives_the_same_bytes(settings):
    runs = [simulate("staleflow", seed=5, settings=settings()) for _ in range(2)]
    assert runs[0].events.digest() == runs[1].events.digest()


def test_fewer_cores_take_longer(settings):
    steps = [
        simulate("laminar", settings=settings(sharing=SharingPart(cores=cores, others=others))).step_s
        for cores, others in ((1, 0.5), (1, 0.0), (8, 0.0))
    ]
    alone = simulate("laminar", settings=settings(sharing=None)).step_s
    assert steps[0] > 1.5 * steps[1] > 1.5 * steps[2]
    assert steps[2] == alone


def test_policies_see_the_cache_in_blocks(settings):
    fleet = build_fleet(configuration("laminar", settings=settings()))
    assert fleet.engine(0.0).block_tokens == 32
    assert "2 replicas and a trainer on small: 2 shared cores" in fleet.description


def test_a_model_takes_precedence(settings):
    more = ("fleet.model=Qwen2.5-7B", "fleet.rollout.gpus=2", "fleet.trainer.gpus=4")
    assert "Qwen2.5-7B" in build_fleet(configuration("laminar", settings=settings(*more))).description


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rollout.max_tokens=5000", "room for 4096 tokens; expected at most that"),
        ("trainer.processes=2", "expected 1: it was measured with one"),
    ],
)
def test_what_cannot_be_is_one_line(change, message, settings):
    with pytest.raises(FleetError, match=message):
        simulate("laminar", settings=settings(change))
