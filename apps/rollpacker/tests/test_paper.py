"""The figures of the paper: its tables belong together, and what is measured in small simulations is what is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.reproduce import Point, reproduce
from tailrace.fleetsim.reproduce.paper import Lab
from tailrace.fleetsim.testing import check_paper
from tailrace.rollpacker.paper import PAPER
from tailrace.rollpacker.paper.points import (
    MODELS,
    ONE_STEP,
    PACKAGE,
    ROLLPACKER,
    VERL,
    fixed_timeouts,
    point,
    staged_scores,
    tail_batched,
    without_scale_down,
    without_stream,
)
from tailrace.rollpacker.paper.rounds import of_kind

CONFIGS = Path(__file__).parents[3] / "configs" / "fleet"


def test_its_tables_belong_together() -> None:
    assert check_paper(PAPER, CONFIGS) > 30
    kinds = [target.kind for target in PAPER.targets()]
    assert len(kinds) == 37
    assert None not in kinds


@pytest.mark.parametrize("system", [VERL, ROLLPACKER])
def test_a_table_is_its_systems_point_of_14b(system: str) -> None:
    file, at = Point(PACKAGE, system).config().model_dump(), point(system, "14B", quick=False).config().model_dump()
    for content in (file, at):
        del content["pipeline"]["steps"], content["pipeline"]["prompts_per_replica"], content["fleet"]["warm_up"]
        for kind in content["fleet"]["workload"]["scoring"]:
            kind.pop("weight", None)
    assert at == file


def test_every_model_has_its_devices_and_whole_replicas() -> None:
    for name, model in MODELS.items():
        fleet = build_fleet(point(ROLLPACKER, name, quick=True).config())
        assert fleet.gpus == model.gpus
        assert (fleet.samples, fleet.needed) == (10, 8)


def test_the_baseline_one_step_ahead_has_devices_of_its_own_to_train() -> None:
    fleet = build_fleet(point(ONE_STEP, "7B", quick=True, prompts=32, gpus=8).config())
    assert fleet.gpus == 16


def _small(at: Point) -> Point:
    return at.over(pipeline__prompts_per_step=16, fleet__workload__response__median=300, rollout__max_tokens=4096)


def test_rounds_are_four_short_ones_and_a_long_one_and_scores_of_a_stage_begin_after_the_last_response() -> None:
    at = _small(tail_batched(point(VERL, "7B", quick=True, kind="code")))
    lab = Lab(processes=1)
    lab.simulate([at])
    steps = lab[at].steps
    assert [one.kind for one in steps] == 2 * [*4 * ["short"], "long"]
    for one in steps:
        assert one.rollout_s < one.scored_s < one.step_s
        assert one.scored_s - one.rollout_s < 45  # the timeout of 30 s, and a queue
    longest = [max(one.longest for one in of_kind(steps, kind)) for kind in ("short", "long")]
    assert longest[0] < longest[1] <= 4096


def test_scores_that_do_not_wait_end_sooner_and_sooner_yet_with_adaptive_timeouts() -> None:
    adaptive = _small(point(ROLLPACKER, "7B", quick=True, kind="code"))
    variants = [adaptive, fixed_timeouts(adaptive), staged_scores(adaptive)]
    lab = Lab(processes=1)
    lab.simulate(variants)
    seconds = [sum(one.scored_s for one in lab[at].steps) for at in variants]
    assert seconds == sorted(seconds)


def test_devices_that_are_lent_shorten_long_rounds_and_change_nothing_of_what_is_trained_on() -> None:
    lent = _small(point(ROLLPACKER, "7B", quick=True, kind="math")).over(pipeline__steps=5)
    kept, whole = without_scale_down(lent), without_stream(lent)
    lab = Lab(processes=1)
    lab.simulate([lent, kept, whole])
    long = [sum(one.step_s for one in of_kind(lab[at].steps, "long")) for at in (lent, kept, whole)]
    assert long[0] < long[1]
    assert long[1] == pytest.approx(long[2], rel=0.05)  # nothing to stream on: all devices generate until the end
    assert len({lab[at].result.trajectories for at in (lent, kept, whole)}) == 1
    assert {lab[at].result.staleness_max for at in (lent, kept, whole)} == {0}


def test_targets_without_simulations() -> None:
    found = reproduce("rollpacker", only=["RP-TAIL-period", "RP-REW-params", "RP-PROFILE", "RP-LOC"], processes=1)
    assert [one.within for one in found.records] == [True, True, True, False]
    assert found.records[-1].failed == "size of the authors' code"
