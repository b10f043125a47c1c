"""The figures of the paper: its tables belong together, and what is measured in small simulations is what is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.reproduce import Point, reproduce
from tailrace.fleetsim.reproduce.paper import Lab
from tailrace.fleetsim.testing import check_paper
from tailrace.streamrl.paper import PAPER, measures
from tailrace.streamrl.paper.points import (
    MODELS,
    across,
    asynchronous,
    colocated,
    synchronous,
    times,
)

CONFIGS = Path(__file__).parents[3] / "configs" / "fleet"
SYSTEMS = {"colocated": colocated, "sync": synchronous, "async": asynchronous}


@pytest.mark.deep
def test_its_tables_belong_together() -> None:
    assert check_paper(PAPER, CONFIGS) > 30
    kinds = [target.kind for target in PAPER.targets()]
    assert len(kinds) == 17
    assert None not in kinds


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_point_uses_no_more_than_its_devices_and_whole_replicas(model: str, system: str) -> None:
    fleet = build_fleet(SYSTEMS[system](model, "20K", quick=True).config())
    assert fleet.gpus <= MODELS[model].gpus
    assert fleet.spec.batch_groups * fleet.samples == 1024
    if system == "colocated":
        assert fleet.gpus == MODELS[model].gpus
        assert fleet.spec.replica_batch * fleet.pools[0].replicas == 1024


def test_devices_are_those_that_algorithm_1_finds_for_its_own_stages() -> None:
    found = asynchronous("7B", "10K", quick=True)
    fleet = build_fleet(found.config())
    stages, unit = times(found), MODELS["7B"].unit
    trains, generates = fleet.gpus - _generating(fleet), _generating(fleet)
    iteration_s = max(stages.generation(generates).seconds, stages.train_s(trains))
    for more in range(unit, MODELS["7B"].gpus, unit):
        others = MODELS["7B"].gpus - more
        assert iteration_s <= max(stages.generation(more).seconds, stages.train_s(others))


def _generating(fleet) -> int:
    return sum(pool.replicas * pool.tp for pool in fleet.pools)


def test_across_datacenters_h20_generate_and_the_weights_cross_once() -> None:
    fleet = build_fleet(across("7B", "20K", quick=True).config())
    (pool,) = fleet.pools
    assert fleet.devices["H20"] == 32 == pool.replicas * pool.tp
    assert pool.rollout.site == "cloud"
    assert 1.5 < pool.weights.broadcast_s < 2.5  # 15.2 GB over 10 GB/s, and a chain through four machines


def _small(at: Point, **settings: Any) -> Point:
    return at.over(pipeline__steps=5, fleet__warm_up=1, pipeline__prompts_per_step=64, **settings)


def test_each_trains_on_the_same_batches_at_the_staleness_of_its_kind() -> None:
    points = {name: _small(system("7B", "5K", quick=True)) for name, system in SYSTEMS.items()}
    lab = Lab(processes=1)
    lab.simulate(points.values())
    found = {name: lab[at].result for name, at in points.items()}
    assert {name: one.staleness_max for name, one in found.items()} == {"colocated": 0, "sync": 0, "async": 1}
    assert len({one.trajectories for one in found.values()}) == 1
    assert all(one.lost_trajectories == 0 for one in found.values())
    assert found["async"].step_s < found["sync"].step_s


def test_lengths_that_grow_were_cut_at_half_of_what_they_grow_to() -> None:
    growing = measures.growing(quick=True)
    workload = build_fleet(growing.config()).workload
    for version, longest in ((0, 10_000), (measures.ITERATIONS, 20_000)):
        lengths = [sample.turns[0][0] for group in range(400) for sample in workload.group(group, 2, version)]
        assert max(lengths) == longest
        assert lengths.count(longest) < 0.05 * len(lengths)


@pytest.mark.deep
def test_targets_without_simulations() -> None:
    wanted = ["SR-XDC", "SR-LPT", "SR-GPU", "SR-MODEL", "SR-PLATEAU", "SR-ALPHA", "SR-CONV"]
    found = reproduce("streamrl", only=wanted, processes=1)
    within = {one.target.id: one.within for one in found.records}
    missed = {"SR-XDC", "SR-MODEL", "SR-CONV"}  # each says why
    assert within == {id_: id_ not in missed for id_ in within}
    assert all(one.target.reason for one in found.records if one.target.id in missed)
