"""A whole run on a machine that was measured."""

import pytest
from profile_machine import FLAT, machine

from tailrace import contracts as c
from tailrace.fleetsim import simulate
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.host.simulator import Simulation
from tailrace.fleetsim.profile.machine import SharingPart, WorkloadPart, machine_toml
from tailrace.fleetsim.profile.run import MeasuredTurns
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
    assert fleet.engine(0.0, fleet.pools[0]).block_tokens == 32
    assert "2 replicas and a trainer on small: 2 shared cores" in fleet.description


def test_a_model_takes_precedence(settings):
    more = ("fleet.model=Qwen2.5-7B", "fleet.rollout.gpus=2", "fleet.trainer.gpus=4")
    assert "Qwen2.5-7B" in build_fleet(configuration("laminar", settings=settings(*more))).description


def test_processes_of_the_trainer_divide_its_work_and_need_their_cores(settings):
    sharing = SharingPart(cores=8, others=0.0, trainer_cores=1.5)
    one, two = (
        build_fleet(configuration("laminar", settings=settings(f"trainer.processes={count}", sharing=sharing)))
        for count in (1, 2)
    )
    assert two.training.update_s(1000, 1e5, 0) == pytest.approx(one.training.update_s(1000, 1e5, 0) / 2)
    assert two.training.update_s(0, 0.0) == one.training.update_s(0, 0.0)  # each steps on all weights
    assert (one.trainer_cores, two.trainer_cores) == (1.5, 3.0)


MIX = "task.mix={brief-chain-sum = 2, programs = 1}"


def test_rounds_of_a_mix_on_devices_that_change_hands(settings):
    """The first source is quick, the second takes long: short rounds hold their shares of both."""
    groups = tuple(
        (0, 10, tuple(base + number % 3 for number in range(4)), (1.0, 0.0, 1.0, 0.0)) for base in (10, 12, 150, 180)
    )
    workload = WorkloadPart(
        groups=groups, sources=(0, 0, 1, 1), score_s=((0.0,) * 4,) * 2 + ((0.05,) * 4,) * 2, signal=FLAT, length=FLAT
    )
    one_size = "pipeline.provisioning.devices_per_machine=1"  # that of the profile
    names = ("pipeline.prompts_per_step=6", "pipeline.steps=8", "evaluation.every=0", MIX, one_size)
    found = settings(*names, workload=workload)
    kinds = []

    class Steps:
        def observe(self, now, events, commands, run):
            kinds.extend(command.round for command in commands if isinstance(command, c.Step))

        def tick(self, now, executor):
            pass

    simulation = Simulation(build_fleet(configuration("rollpacker", settings=found)), observers=[Steps()])
    simulation.run()
    assert simulation.controller.failure is None
    assert simulation.controller.view.step == 8
    assert {"short", "long"} == set(kinds)
    lent = [command for _, _, sent in simulation.log.instants for command in sent if isinstance(command, c.Lend)]
    assert lent


def turns_read_back(simulation):
    """The turns of each response, by the fold that reads a real run's events, and when the environment had each turn."""
    fold, found = MeasuredTurns(), []
    for now, events, commands in simulation.log.instants:
        found += filter(None, [fold.heard(now, event) for event in events])
        for command in commands:
            if isinstance(command, c.Route):
                fold.routed(command.trajectories)
    return found


@pytest.mark.parametrize("app", ["laminar", "staleflow", "streamrl"])
def test_simulated_environments_are_the_measured_ones_when_they_are_measured_again(app, settings):
    """Turns go in as they were measured, and come out of the simulated log as a profile of it would have them."""
    said = (((30, 0.75), (14, 0.0)), ((25, 0.25), (10, 2.5), (6, 0.0)), ((9, 0.0),), ((40, 1.25), (20, 0.0)))
    lengths = tuple(sum(tokens for tokens, _ in turns) for turns in said)
    workload = WorkloadPart(groups=((0, 12, lengths, (1.0, 0.0, 0.0, 0.0)),), turns=(said,), signal=FLAT, length=FLAT)
    simulation = Simulation(build_fleet(configuration(app, settings=settings("evaluation.every=0", workload=workload))))
    simulation.run()
    assert simulation.controller.failure is None
    assert simulation.controller.spec.environments == 1
    found = turns_read_back(simulation)
    assert len(found) >= 6 * 16
    by_length = {sum(tokens for tokens, _ in turns): turns for turns in said}
    late = 2 * machine().delays.report_s  # an end is told late, and then counts as less time in the environment
    for turns in found:
        expected = by_length[sum(tokens for tokens, _ in turns)]
        assert [tokens for tokens, _ in turns] == [tokens for tokens, _ in expected]
        for (_, seconds), (_, drawn_s) in zip(turns, expected, strict=True):
            assert drawn_s - late <= seconds <= drawn_s + late


def test_a_mix_needs_a_profile_of_one(settings):
    with pytest.raises(FleetError, match=r"found 2 sources of prompts and a profile of 1, .*: tailrace profile"):
        simulate("laminar", settings=settings(MIX))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rollout.max_tokens=5000", "room for 4096 tokens; expected at most that"),
    ],
)
def test_what_cannot_be_is_one_line(change, message, settings):
    with pytest.raises(FleetError, match=message):
        simulate("laminar", settings=settings(change))


@pytest.mark.parametrize("policy", ["adaptive-tp", "adaptive-tp-scale-down"])
def test_replicas_of_a_profile_have_one_size_and_a_policy_that_resizes_is_refused_before_anything_starts(
    policy, settings
):
    lengths = "fleet.workload={response={median=20, sigma=0.5}}"  # the profile's own are of another task
    wants = settings(f"pipeline.provisioning={policy}")
    with pytest.raises(FleetError) as refused:
        build_fleet(configuration("rollpacker", settings=wants))
    said = str(refused.value)
    assert "\n" not in said
    for part in ("'pipeline.provisioning'", "'fleet.profile'", "1 or 2 devices", "'small'", "expected", "'static'"):
        assert part in said
    build_fleet(configuration("rollpacker", settings=settings("pipeline.provisioning=static", lengths)))
    alone = settings(f"pipeline.provisioning={{name='{policy}', devices_per_machine=1}}", lengths)
    build_fleet(configuration("rollpacker", settings=alone))  # it never resizes
