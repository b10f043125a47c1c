"""The figures of the paper: its tables belong together, and what needs no simulation is as it says."""

from __future__ import annotations

from pathlib import Path

from tailrace.fleetsim.reproduce import Point, reproduce
from tailrace.fleetsim.testing import check_paper
from tailrace.staleflow.paper import PAPER
from tailrace.staleflow.paper.points import MODELS, PACKAGE, PARAMETERS, detailed

CONFIGS = Path(__file__).parents[3] / "configs" / "fleet"


def test_its_tables_belong_together() -> None:
    assert check_paper(PAPER, CONFIGS) > 40
    assert len(PAPER.targets()) == 19


def test_parameters_are_what_the_tables_hold() -> None:
    response = Point(PACKAGE, "staleflow").config().fleet["workload"]["response"]
    assert response["median"] == PARAMETERS.value("base-30b-a3b.response.median")
    assert response["sigma"] == PARAMETERS.value("base-30b-a3b.response.sigma")


def test_splits_leave_devices_for_both() -> None:
    for model in MODELS.values():
        assert all(0 < trainer < model.gpus for trainer in model.trainers)
    assert detailed().config() == Point(PACKAGE, "staleflow").config()


def test_targets_without_simulations() -> None:
    found = reproduce("staleflow", only=["SF-COST-knee", "SF-RED-count", "SF-PS-flat"], processes=1)
    assert [one.within for one in found.records] == [True] * 3
