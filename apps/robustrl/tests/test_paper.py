"""The figures of the paper: its tables belong together, and what is measured in small simulations is what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailrace.fleetsim.reproduce import reproduce
from tailrace.fleetsim.reproduce.paper import Lab
from tailrace.fleetsim.reproduce.targets import TargetClass
from tailrace.fleetsim.testing import check_paper
from tailrace.robustrl.paper import PAPER
from tailrace.robustrl.paper.points import byterobust, fault_free, robustrl

CONFIGS = Path(__file__).parents[3] / "configs" / "robustrl"


def test_its_tables_belong_together() -> None:
    assert check_paper(PAPER, CONFIGS) == 27
    kinds = [target.kind for target in PAPER.targets()]
    assert len(kinds) == 28
    assert None not in kinds


def test_a_fault_costs_a_task_more_than_a_trainer_and_nothing_is_lost() -> None:
    small: dict[str, Any] = {"pipeline__steps": 3, "pipeline__prompts_per_step": 16, "fleet__warm_up": 0}
    systems_of = {"ours": robustrl, "theirs": byterobust, "free": fault_free}
    struck: dict[str, Any] = {"faults": ("trainer@step2",)}
    points = {
        name: of("8b-math", "async", quick=True).over(**small, **({} if name == "free" else struck))
        for name, of in systems_of.items()
    }
    lab = Lab(processes=1)
    lab.simulate(points.values())
    found = {name: lab[at] for name, at in points.items()}
    assert all(one.result.lost_trajectories == 0 for one in found.values())
    ettr = {name: one.effective.ettr for name, one in found.items()}
    assert ettr["theirs"] < ettr["ours"] < ettr["free"]
    hours = {name: one.result.duration_s for name, one in found.items()}
    assert hours["free"] <= hours["ours"] < hours["theirs"]  # rollouts that go on may hide all of a trainer's restart


def test_targets_without_simulations() -> None:
    wanted = [target.id for target in PAPER.targets() if target.kind in (TargetClass.INPUT, TargetClass.IDENTITY)]
    found = reproduce("robustrl", only=wanted, processes=1)
    measured = {one.target.id: one.within for one in found.records if one.ours}
    assert {"RR-ETTR-ratio", "RR-DETECT", "RR-DETECT-byte", "RR-CKPT", "RR-RESTART"} <= measured.keys()
    missed = {id_ for id_, within in measured.items() if within is False}
    assert all(one.target.reason for one in found.records if one.target.id in missed), missed
