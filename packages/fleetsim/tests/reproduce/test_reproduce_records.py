"""Records and what they say together; simulations in two processes give what they give in one."""

from __future__ import annotations

import json

import pytest

from tailrace.fleetsim.errors import ReproductionError
from tailrace.fleetsim.reproduce.drawing import draw
from tailrace.fleetsim.reproduce.lab import Lab, Progress
from tailrace.fleetsim.reproduce.laminar.staleness import _under
from tailrace.fleetsim.reproduce.paper import reproduce
from tailrace.fleetsim.reproduce.points import Point
from tailrace.fleetsim.reproduce.probes import Measured
from tailrace.fleetsim.reproduce.records import Compared, record, summarise
from tailrace.fleetsim.reproduce.targets import Target, Tolerance


def _target(id_: str, paper: tuple[float | bool, ...], unit: str = "x", **tolerance: float) -> Target:
    return Target(id_, "1", "a number", paper, (), unit, Tolerance(**tolerance), "sim", "a reason")


def _small(probe: str = "usual", **settings: object) -> Point:
    size = {
        "pipeline__steps": 3,
        "pipeline__prompts_per_step": 16,
        "pipeline__prompts_per_replica": 4,
        "fleet__warm_up": 1,
    }
    fleet = {"fleet__trainer__gpus": 32, "fleet__rollout__gpus": 16, "rollout__max_tokens": 4096}
    short = {"fleet__workload__response__median": 500}
    return Point("laminar", probe=probe).over(**{**size, **fleet, **short, **settings})


def test_a_record_says_how_far_off_it_is() -> None:
    one = record(_target("A", (2.0, 4.0), relative=0.2), [2.2, 5.0], fitted=())
    assert one.errors == (pytest.approx(0.1), 0.25)
    assert one.relative_error == pytest.approx(0.175)
    assert one.held_out
    assert not one.within
    plain = one.plain()
    assert (plain["id"], plain["paper"], plain["ours"], plain["reason"]) == ("A", [2.0, 4.0], [2.2, 5.0], "a reason")
    json.dumps(plain)


def test_a_record_that_is_near_enough_has_no_reason_and_one_that_failed_has_its_own() -> None:
    near = record(_target("A", (2.0,), relative=0.2), [2.1], fitted=("A",)).plain()
    assert (near["ours"], near["held_out"], near["within"], near["reason"]) == (2.1, False, True, None)
    failed = record(_target("A", (True,), unit="bool"), None, fitted=(), failed="it would hang").plain()
    assert (failed["ours"], failed["relative_error"], failed["reason"]) == (None, 1.0, "it would hang")


def test_the_median_is_of_held_out_ratios_alone() -> None:
    records = [
        record(_target("A", (1.0,), relative=0.2), [1.1], fitted=()),
        record(_target("B", (1.0,), relative=0.2), [1.3], fitted=()),
        record(_target("C", (1.0,), relative=0.2), [9.0], fitted=("C",)),
        record(_target("D", (1.0,), unit="s", relative=0.2), [9.0], fitted=()),
    ]
    found = summarise(records, [Compared("o", "one is faster", (("yes", True), ("no", False)))])
    assert found.median_error == pytest.approx(0.2)
    assert (found.ratios, found.within, found.targets, found.held_out_within, found.held_out) == (2, 1, 4, 1, 3)
    assert (found.right, found.comparisons) == (1, 2)


def test_a_drawing_has_two_bars_for_each_number() -> None:
    records = [
        record(_target("A", (1.0, 2.0), relative=0.2), [1.1, 2.0], fitted=()),
        record(_target("B", (True,), unit="bool"), [True], fitted=()),
    ]
    drawing = draw("laminar", records)
    assert drawing.count("A") >= 2
    assert drawing.count("<rect") == 2 + 4


def test_processes_do_not_change_what_is_found() -> None:
    points = [_small(), _small("moves"), _small(pipeline__relocation="none")]
    heard: list[Progress] = []
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
    assert isinstance(usual, Measured)
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
    found = reproduce("staleflow", only=["SF-COST-knee", "SF-RED-count", "SF-PS-flat"], processes=1)
    assert [one.within for one in found.records] == [True] * 3


def test_the_number_that_most_are_under() -> None:
    assert _under({0: 50, 1: 46, 2: 4}) == 2
    assert _under({0: 50, 1: 44, 2: 6}) == 3
