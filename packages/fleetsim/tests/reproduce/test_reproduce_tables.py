"""The papers' tables, the free parameters and the systems say the same everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.fleetsim.build import build_fleet
from tailrace.fleetsim.errors import ReproductionError
from tailrace.fleetsim.reproduce import PAPERS, laminar, staleflow
from tailrace.fleetsim.reproduce.calibration import calibration, trial
from tailrace.fleetsim.reproduce.laminar.points import BASELINES, SCALES, SYSTEMS, TRAINERS, point
from tailrace.fleetsim.reproduce.paper import reproduce
from tailrace.fleetsim.reproduce.points import Point, systems, table
from tailrace.fleetsim.reproduce.staleflow.points import MODELS, detailed
from tailrace.fleetsim.reproduce.targets import Tolerance, orderings, targets
from tailrace.pipeline.config.models import RunConfig

ROOT = Path(__file__).parents[4]
CONFIGS = ROOT / "configs" / "fleet"
MODULES = {"laminar": laminar, "staleflow": staleflow}
COUNTS = {"laminar": 44, "staleflow": 19}


@pytest.mark.parametrize("paper", PAPERS)
def test_every_target_is_measured_and_named_once(paper: str) -> None:
    ids = [target.id for target in targets(paper)]
    assert len(ids) == len(set(ids)) == COUNTS[paper]
    assert set(ids) == set(MODULES[paper].measures(quick=False))
    assert {one.id for one in orderings(paper)} == set(MODULES[paper].orders(quick=False))


@pytest.mark.parametrize("paper", PAPERS)
def test_at_most_a_third_of_the_targets_is_fitted_on(paper: str) -> None:
    known, chosen = {target.id for target in targets(paper)}, calibration(paper)
    assert set(chosen.fitted_on) <= known
    assert 3 * len(chosen.fitted_on) <= len(known)
    names = [one.name for one in chosen.parameters]
    assert len(names) == len(set(names))
    assert not [one.name for one in chosen.parameters if len(one.source) < 10]


@pytest.mark.skipif(not CONFIGS.is_dir(), reason="the repository's configurations are not here")
def test_configurations_are_the_tables_that_are_reproduced() -> None:
    assert {path.stem for path in CONFIGS.glob("*.toml")} == set(systems())
    for name in systems():
        assert (CONFIGS / f"{name}.toml").read_text() == table(name).read_text(), name


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_table_is_its_systems_point_of_32b_on_128_gpus(system: str) -> None:
    file, at = Point(system).config(), point(system, "32B", 128).config()
    assert _without_size(at) == _without_size(file)


@pytest.mark.parametrize("paper", PAPERS)
def test_parameters_are_what_the_tables_hold(paper: str) -> None:
    where = {"laminar": ("laminar", "32B"), "staleflow": ("staleflow", "base-30b-a3b")}[paper]
    fleet = Point(where[0]).config().fleet
    values = {one.name: one.value for one in calibration(paper).parameters}
    assert fleet["workload"]["response"]["median"] == values[f"{where[1]}.response.median"]
    assert fleet["workload"]["response"]["sigma"] == values[f"{where[1]}.response.sigma"]
    if paper == "laminar":
        assert fleet["workload"]["correlation"] == values["correlation"]
        assert fleet["trainer"]["mfu"] == values["mfu"]
        assert fleet["rollout"]["step_s"] == values["step_s"]
        assert fleet["rollout"]["prefill_mfu"] == values["prefill_mfu"]


def test_splits_use_all_devices_and_hold_whole_replicas() -> None:
    for system in SYSTEMS:
        for model, scales in SCALES.items():
            for place, gpus in enumerate(scales):
                fleet = build_fleet(point(system, model, gpus).config())
                assert fleet.gpus == gpus
                if system != "synchronous":
                    assert 0 < TRAINERS[system][model][place] < gpus


def test_baselines_differ_from_laminar_in_their_policies() -> None:
    ours = Point("laminar").config().pipeline
    for baseline in BASELINES:
        assert Point(baseline).config().pipeline != ours


def test_splits_of_staleflow_leave_devices_for_both() -> None:
    for model in MODELS.values():
        assert all(0 < trainer < model.gpus for trainer in model.trainers)
    assert detailed().config() == Point("staleflow").config()


def test_a_trial_changes_parameters_only_within_it() -> None:
    before = point("laminar", "7B", 16)
    with trial("laminar", {"7B.response.median": 1234.0}):
        assert point("laminar", "7B", 16).config().fleet["workload"]["response"]["median"] == 1234.0
    assert point("laminar", "7B", 16) == before
    with pytest.raises(ReproductionError, match="found no parameter 'x' of laminar"), trial("laminar", {"x": 1.0}):
        pass


def test_tolerances() -> None:
    assert Tolerance(relative=0.2).holds(2.0, 2.4)
    assert not Tolerance(relative=0.2).holds(2.0, 2.41)
    assert Tolerance(absolute=0.1).holds(0.5, 0.41)
    assert Tolerance(at_most=4).error(4, 3) == 0.0
    assert Tolerance(at_most=4).error(4, 5) == 0.25
    assert not Tolerance(at_most=4).holds(4, 5)
    assert Tolerance(between=(70, 110)).error(100, 77) == 0.0
    assert Tolerance(between=(70, 110)).error(100, 121) == pytest.approx(0.1)
    assert Tolerance(between=(70, 110)).error(100, 35) == 1.0
    assert Tolerance().error(True, False) == 1.0
    assert Tolerance().holds(True, True)
    assert not Tolerance().holds(37, 36)


def test_unknown_names_are_one_line() -> None:
    with pytest.raises(ReproductionError, match="found the paper 'rollpacker', expected one of laminar, staleflow"):
        reproduce("rollpacker")
    with pytest.raises(ReproductionError, match="found the target 'LAM-NO', expected one of LAM-E2E-verl-avg"):
        reproduce("laminar", only=["LAM-NO"])


def _without_size(config: RunConfig) -> dict[str, object]:
    """Everything but how many batches are simulated."""
    content = config.model_dump()
    del content["pipeline"]["steps"]
    del content["fleet"]["warm_up"]
    content["fleet"]["trainer"].setdefault("gpus", None)
    return content
