"""Records, tolerances, and what they say together."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from tailrace.contracts import PluginError
from tailrace.fleetsim.errors import ReproductionError
from tailrace.fleetsim.reproduce import reproduce
from tailrace.fleetsim.reproduce.drawing import draw
from tailrace.fleetsim.reproduce.records import OrderComparison, record, summarise
from tailrace.fleetsim.reproduce.targets import ScoreKind, Target, TargetClass, Tolerance
from tailrace.fleetsim.reproduce.targets import _target as _target_of


def _target(id_: str, paper: tuple[float | bool, ...], unit: str = "x", **tolerance: float) -> Target:
    return Target(id_, "1", "a number", paper, (), unit, Tolerance(**tolerance), "sim", "a reason")


def test_a_record_says_how_far_off_it_is() -> None:
    one = record(_target("A", (2.0, 4.0), relative=0.2), [2.2, 5.0])
    assert one.errors == (pytest.approx(0.1), 0.25)
    assert one.relative_error == pytest.approx(0.175)
    assert one.target.scored
    assert not one.within
    plain = one.plain()
    assert (plain["id"], plain["paper"], plain["ours"], plain["reason"]) == ("A", [2.0, 4.0], [2.2, 5.0], "a reason")
    json.dumps(plain)


def test_a_record_that_is_near_enough_has_no_reason_and_one_that_failed_has_its_own() -> None:
    near = record(_target("A", (2.0,), relative=0.2), [2.1]).plain()
    assert (near["ours"], near["scored"], near["within"], near["reason"]) == (2.1, True, True, None)
    failed = record(_target("A", (True,), unit="bool"), None, failed="it would hang").plain()
    assert (failed["ours"], failed["relative_error"], failed["reason"]) == (None, 1.0, "it would hang")


def test_orders_are_counted_apart() -> None:
    found = summarise(
        [record(_target("A", (1.0,), relative=0.2), [1.1])],
        [OrderComparison("o", "one is faster", (("yes", True), ("no", False)))],
    )
    assert (found.right, found.comparisons) == (1, 2)
    assert (found.predictions.groups, found.predictions.statements) == (1, 0)


def test_predictions_that_parameters_were_chosen_on_stand_apart() -> None:
    records = [
        record(_classed("A", (1.0,)), [1.3]),
        record(_classed("B", (1.0,), was_fitted=True), [1.0]),
        record(_classed("C", (1.0,), was_fitted=True), [1.1]),
        record(_classed("D", (1.0,), "input"), [1.0]),
        record(_classed("E", (1.0,), "identity"), [1.0]),
        record(_classed("F", (1.0,), "fit"), [1.0]),
    ]
    found = summarise(records).predictions
    assert (found.groups, found.apart, found.worst_id) == (1, 2, "A")
    assert found.median == found.worst == pytest.approx(0.3)
    assert found.median_with == pytest.approx(0.1)
    assert [one.plain()["scored"] for one in records] == [True, False, False, False, False, False]
    nothing = summarise(records[1:]).predictions
    assert (nothing.groups, nothing.worst_id, math.isnan(nothing.median)) == (0, "", True)


def test_a_target_without_a_class_is_refused() -> None:
    entry = {"id": "A", "section": "1", "metric": "a number", "paper": 1.0, "unit": "x", "mode": "sim"}
    for wrong in ({}, {"class": "guess"}):
        with pytest.raises(
            ReproductionError, match=r"target A: found class .*, expected one of prediction, fit, input"
        ):
            _target_of({**entry, **wrong})
    assert _target_of({**entry, "class": "fit"}).kind is TargetClass.FIT


def test_a_drawing_has_two_bars_for_each_number() -> None:
    records = [
        record(_target("A", (1.0, 2.0), relative=0.2), [1.1, 2.0]),
        record(_target("B", (True,), unit="bool"), [True]),
    ]
    page = draw("laminar", records)
    assert page.count('id="charts"') == 1  # what is drawn is found by it
    (chart,) = json.loads(re.search(r'<script type="application/json" id="charts">(.*?)</script>', page, re.S)[1])
    assert [trace["y"] for trace in chart["data"]] == [["A 1", "A 2"]] * 2
    assert [trace["text"] for trace in chart["data"]] == [["1", "2"], ["1.1", "2"]]


def test_tolerances() -> None:
    assert Tolerance(relative=0.2).holds(2.0, 2.4)
    assert not Tolerance(relative=0.2).holds(2.0, 2.41)
    assert Tolerance(absolute=0.1).holds(0.5, 0.41)
    assert Tolerance(at_most=4).error(4, 3) == 0.0
    assert Tolerance(at_most=4).error(4, 5) == 0.25
    assert not Tolerance(at_most=4).holds(4, 5)
    assert Tolerance(between=(70, 110)).error(100, 77) == 0.0
    assert Tolerance(between=(70, 110)).error(100, 121) == pytest.approx(0.1)
    assert Tolerance(between=(70, 110)).error(100, 35) == 0.5
    assert Tolerance().error(True, False) == 1.0
    assert Tolerance().holds(True, True)
    assert not Tolerance().holds(37, 36)


def test_a_paper_that_is_not_there_is_one_line() -> None:
    with pytest.raises(PluginError, match=r"found .rollpaker. in group tailrace\.paper, expected"):
        reproduce("rollpaker")


def _classed(id_: str, paper: tuple[float | bool, ...], kind: str = "prediction", **more: object) -> Target:
    plain = _target(id_, paper, relative=0.2)
    return replace(plain, kind=TargetClass(kind), **more)


def test_of_targets_with_classes_only_predictions_count_and_near_duplicates_once() -> None:
    records = [
        record(_classed("A", (2.0,), without_effects=1.0), [2.2]),
        record(_classed("A2", (2.0,), leader="A", without_effects=1.0), [2.6]),
        record(_classed("B", (4.0,)), None, failed="not simulated"),
        record(_classed("C", (1.0,), "fit"), [9.0]),
        record(_classed("D", (1.0,), "out"), None),
        record(_classed("E", (True,), score=ScoreKind.STATEMENT), [True]),
        record(_classed("F", (True,), score=ScoreKind.STATEMENT), None),
    ]
    found = summarise(records).predictions
    assert (found.groups, found.compared, found.right, found.statements) == (2, 1, 1, 2)
    assert found.median == pytest.approx((0.2 + 1.0) / 2)  # the mean of A and A2, and what was not simulated
    assert found.without_effects == pytest.approx(0.5)
    assert found.compared_median == pytest.approx(0.2)
    assert (found.worst_id, found.worst, found.worst_value_id) == ("B", 1.0, "B")
    assert records[3].plain()["class"] == "fit"


def test_each_value_may_have_a_range_and_is_off_by_its_distance_from_the_nearer_end() -> None:
    ranges = (Tolerance(between=(2.0, 4.0)), Tolerance(between=(0.0, 3.0)))
    one = record(_classed("A", (2.0, 3.0), tolerances=ranges), [1.0, 6.0])
    assert one.errors == (0.5, 1.0)
    assert [one.holds(0), one.holds(1)] == [False, False]
    assert record(_classed("A", (2.0, 3.0), tolerances=ranges), [3.0, 0.0]).within
