"""The figures of the paper: its tables belong together, and what is measured in small simulations is what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.fleetsim.errors import ReproductionError
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.reproduce import Point, ProbeFindings, reproduce
from tailrace.fleetsim.reproduce.paper import Lab, LabProgress
from tailrace.fleetsim.testing import check_paper
from tailrace.laminar.paper import PAPER
from tailrace.laminar.paper.points import BASELINES, PACKAGE, PARAMETERS, SCALES, SYSTEMS, TRAINERS, point
from tailrace.laminar.paper.sections import _share_under
from tailrace.pipeline.config.models import RunConfig

CONFIGS = Path(__file__).parents[3] / "configs" / "fleet"


def _small(probe: str = "usual", **settings: Any) -> Point:
    size: dict[str, Any] = {
        "pipeline__steps": 3,
        "pipeline__prompts_per_step": 16,
        "pipeline__prompts_per_replica": 4,
        "fleet__warm_up": 1,
    }
    fleet = {"fleet__trainer__gpus": 32, "fleet__rollout__gpus": 16, "rollout__max_tokens": 4096}
    short = {"fleet__workload__response__median": 500}
    return Point(PACKAGE, "laminar", probe=probe).over(**{**size, **fleet, **short, **settings})


def test_its_tables_belong_together() -> None:
    assert check_paper(PAPER, CONFIGS) > 70
    assert len(PAPER.targets()) == 44


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_table_is_its_systems_point_of_32b_on_128_gpus(system: str) -> None:
    file, at = Point(PACKAGE, system).config(), point(system, "32B", 128).config()
    assert _without_size(at) == _without_size(file)


def test_parameters_are_what_the_tables_hold() -> None:
    fleet, value = Point(PACKAGE, "laminar").config().fleet, PARAMETERS.value
    assert fleet["workload"]["response"]["median"] == value("32B.response.median")
    assert fleet["workload"]["response"]["sigma"] == value("32B.response.sigma")
    assert fleet["workload"]["correlation"] == value("correlation")
    assert fleet["trainer"]["mfu"] == value("mfu")
    assert fleet["rollout"]["step_s"] == value("step_s")
    assert fleet["rollout"]["prefill_mfu"] == value("prefill_mfu")


def test_splits_use_all_devices_and_hold_whole_replicas() -> None:
    for system in SYSTEMS:
        for model, scales in SCALES.items():
            for place, gpus in enumerate(scales):
                fleet = build_fleet(point(system, model, gpus).config())
                assert fleet.gpus == gpus
                if system != "synchronous":
                    assert 0 < TRAINERS[system][model][place] < gpus


def test_baselines_differ_from_laminar_in_their_policies() -> None:
    ours = Point(PACKAGE, "laminar").config().pipeline
    for baseline in BASELINES:
        assert Point(PACKAGE, baseline).config().pipeline != ours


def test_a_trial_changes_parameters_only_within_it() -> None:
    before = point("laminar", "7B", 16)
    with PARAMETERS.trial({"7B.response.median": 1234.0}):
        assert point("laminar", "7B", 16).config().fleet["workload"]["response"]["median"] == 1234.0
    assert point("laminar", "7B", 16) == before
    with (
        pytest.raises(ReproductionError, match="found no parameter 'x' in"),
        PARAMETERS.trial({"x": 1.0}),
    ):
        pass


def test_an_unknown_target_is_one_line() -> None:
    with pytest.raises(ReproductionError, match="found the target 'LAM-NO', expected one of LAM-E2E-verl-avg"):
        reproduce("laminar", only=["LAM-NO"])


@pytest.mark.deep
def test_processes_do_not_change_what_is_found() -> None:
    points = [_small(), _small("moves"), _small(pipeline__relocation="none")]
    heard: list[LabProgress] = []
    alone, beside = Lab(processes=1, listener=heard.append), Lab(processes=2)
    alone.simulate(points)
    beside.simulate(points)
    assert [alone[point].result for point in points] == [beside[point].result for point in points]
    assert [progress.done for progress in heard] == [1, 2, 3]
    assert heard[-1].trajectories == sum(alone[point].result.trajectories for point in points)


def test_what_is_measured_beside_the_usual() -> None:
    lab = Lab(processes=1)
    plain, probed = _small(), _small("moves")
    lab.simulate([plain, probed])
    usual, moves = lab[plain], lab[probed]
    assert isinstance(usual, ProbeFindings)
    assert usual.result == moves.result
    assert usual.versions_mixed == moves.versions_mixed == 0
    assert not usual.overheads_s
    assert usual.commands["Route"] > 0
    assert usual.pull_s > 0
    assert usual.decode_s > usual.prefill_s > 0
    assert usual.groups == 16
    assert sum(usual.completed_staleness.values()) >= usual.result.trajectories


def test_a_replica_that_dies_is_back_after_detection_restart_and_pull() -> None:
    point = _small(pipeline__steps=20, faults=("replica:0@step2",), fleet__rollout__restart_s=20.0)
    lab = Lab(processes=1)
    lab.simulate([point])
    assert 25.0 < lab[point].recovered_s < 28.0


def test_a_point_that_cannot_be_says_why_and_only_when_it_is_asked_for() -> None:
    wrong = _small(fleet__rollout__gpus=15)
    lab = Lab(processes=1)
    lab.simulate([wrong])
    with pytest.raises(ReproductionError, match=r"rollout\.gpus = 15"):
        lab[wrong]


def test_targets_without_simulations() -> None:
    found = reproduce("laminar", only=["LAM-BCAST", "LAM-BCAST-flat", "LAM-DATAPLANE"], processes=1)
    assert [one.within for one in found.records] == [True] * 3


def test_the_number_that_most_are_under() -> None:
    assert _share_under({0: 50, 1: 46, 2: 4}) == 2
    assert _share_under({0: 50, 1: 44, 2: 6}) == 3


def _without_size(config: RunConfig) -> dict[str, object]:
    """Everything but how many batches are simulated."""
    content = config.model_dump()
    del content["pipeline"]["steps"]
    del content["fleet"]["warm_up"]
    content["fleet"]["trainer"].setdefault("gpus", None)
    return content
