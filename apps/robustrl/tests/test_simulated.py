"""The configurations of fleets are simulated to their end, and effective training time is what it is in each mode."""

from pathlib import Path

import pytest

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.results.run_directory import plain
from tailrace.fleetsim.results.watch import watch_fleet
from tailrace.pipeline.config.target import configuration

FOLDER = Path(__file__).parents[3] / "configs" / "robustrl"
MODES = ("async", "semi-sync", "sync")
FLEETS = sorted(path.stem.removeprefix("fleet-") for path in FOLDER.glob("fleet-*.toml"))


def simulated(name, *settings):
    config = configuration(str(FOLDER / f"fleet-{name}.toml"), settings=settings)
    watched = watch_fleet(build_fleet(config, seed=0), config, name=name, seed=0)
    assert watched.result.failure is None
    assert watched.run.step == config.pipeline.steps
    assert watched.result.lost_trajectories == 0
    return plain(watched)


def test_three_workloads_in_three_modes_and_two_fleets_of_their_own():
    expected = [f"{workload}-{mode}" for workload in ("8b-math", "32b-math", "32b-swe") for mode in MODES]
    assert sorted([*expected, "tool-waits", "9600"]) == FLEETS


SMALL = ("pipeline.steps=3", 'faults=["trainer@step2:backward"]', "pipeline.prompts_per_step=16", "fleet.warm_up=0")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.deep
def test_a_trainer_that_restarts_alone_costs_less_the_more_others_generate_on(mode):
    found = simulated(f"8b-math-{mode}", *SMALL)
    assert found["task_restarts"] == found["false_detections"] == 0
    free = simulated(f"8b-math-{mode}", *SMALL, "faults=[]")
    away_h = 195 / 3600  # 5 s until it is noticed, 190 s until it is back
    lost = free["ettr"] - found["ettr"]
    if mode == "sync":  # nobody works meanwhile
        assert lost == pytest.approx(away_h / found["simulated_hours"] * free["ettr"], rel=0.3)
    else:  # the other half does, if it has something to do
        assert 0 < lost < away_h / found["simulated_hours"]


@pytest.mark.deep
def test_modes_trade_staleness_for_speed():
    steps = {mode: simulated(f"8b-math-{mode}", *SMALL, "faults=[]")["result"] for mode in MODES}
    assert steps["sync"]["staleness_max"] == 0
    assert 0 < steps["semi-sync"]["staleness_max"] <= 1
    assert 0 < steps["async"]["staleness_max"] <= 1


@pytest.mark.deep
def test_nobody_is_taken_for_down_while_it_waits_for_tools():
    found = simulated("tool-waits", "pipeline.steps=1", "pipeline.prompts_per_step=16", "fleet.warm_up=0")
    assert found["false_detections"] == found["late_detections"] == 0


@pytest.mark.deep
@pytest.mark.parametrize("name", FLEETS)
def test_every_fleet_is_simulated_to_its_end(name):
    found = simulated(name, "pipeline.steps=10")
    assert 0 < found["ettr_strict"] <= found["ettr"] <= 1
    assert found["false_detections"] == 0
