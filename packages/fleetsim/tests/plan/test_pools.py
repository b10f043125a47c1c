"""Plans over pools and sites: what is estimated, what is tried around it, and what a search by cost leaves out."""

import pytest

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.config import fleet_config
from tailrace.fleetsim.fleet.layout import layout
from tailrace.fleetsim.plan import plan
from tailrace.fleetsim.plan.space import PoolSplits, over_pools
from tailrace.pipeline.config.loading import merge, validate

CONTENT = {
    "app": "laminar",
    "pipeline": {"steps": 4, "prompts_per_step": 8, "samples_per_prompt": 4, "prompts_per_replica": 4},
    "rollout": {"max_tokens": 4096},
    "fleet": {
        "model": "Qwen2.5-7B",
        "trainer": {"gpus": 8},
        "rollout": [{"gpus": 4}, {"device": "H20", "gpus": 8, "site": "far", "step_s": 0.001}],
        "sites": {"far": {}},
        "prices": {"H800": 2.85, "H20": 1.0},
        "workload": {"response": [{"median": 500, "sigma": 0.9}]},
    },
}


def config(**fleet):
    return validate([("test", {**CONTENT, "fleet": {**CONTENT["fleet"], **fleet}})])


def seconds(value, devices):
    return value


def test_a_plan_is_over_pools_where_there_are_several_or_one_at_another_site():
    table = CONTENT["fleet"]
    assert over_pools(fleet_config(table))
    assert over_pools(fleet_config({**table, "rollout": table["rollout"][1]}))
    assert not over_pools(fleet_config({**table, "rollout": table["rollout"][0]}))


def test_splits_use_at_most_what_there_is_and_are_configurations_that_can_be():
    found = PoolSplits(config(), 12, seconds)
    for split in found.best:
        assert split.trainer + split.rollout <= 12
        assert split.rollout == sum(pool.gpus for pool in split.pools)
        at = validate([("test", merge(config().model_dump(exclude_unset=True), split.settings()))])
        made = layout(fleet_config(at.fleet))
        assert (made.trainer_gpus, made.rollout_gpus, made.replicas) == (split.trainer, split.rollout, split.replicas)
        assert all(pool.table.step_s == (0.001 if pool.table.site else 0.0) for pool in made.pools)


def test_the_best_by_time_has_no_fewer_devices_than_the_best_by_price():
    prices = {"H800": 2.85, "H20": 1.0}
    fast = PoolSplits(config(), None, seconds).best[0]
    cheap = PoolSplits(config(), None, lambda s, devices: s * sum(prices[k] * n for k, n in devices.items())).best[0]
    assert fast.trainer + fast.rollout >= cheap.trainer + cheap.rollout
    free = PoolSplits(config(), None, lambda _, devices: devices["H800"]).best[0]
    assert [pool.device for pool in free.pools] == ["H20"]


def test_neighbours_differ_in_one_part_by_one_step():
    found = PoolSplits(config(), None, seconds)
    for split in found.best:
        near = found.near(split)
        assert near[0] == split
        for other in near[1:]:
            parts = [(each.trainer, {pool.device: pool.gpus for pool in each.pools}) for each in (split, other)]
            (trainer, pools), (other_trainer, other_pools) = parts
            changed = [kind for kind in ("H800", "H20") if pools.get(kind, 0) != other_pools.get(kind, 0)]
            assert (trainer != other_trainer) + len(changed) == 1


def test_what_fits_nowhere_is_refused():
    with pytest.raises(FleetError, match="no split of 1 GPUs"):
        PoolSplits(config(), 1, seconds)
    alone = {**CONTENT["fleet"], "rollout": {"gpus": 4}}
    with pytest.raises(FleetError, match=r"expected --gpus N, or tables \[\[fleet.rollout\]\]"):
        plan(validate([("test", {**CONTENT, "fleet": alone})]))
    unpriced = {**CONTENT["fleet"], "prices": {}}
    with pytest.raises(FleetError, match="no price of H800 and H20"):
        plan(validate([("test", {**CONTENT, "fleet": unpriced})]), objective="cost")


@pytest.mark.timeout(240)
@pytest.mark.deep
def test_a_search_by_cost_over_pools_ends_with_options_in_their_order():
    search = plan(config(), bound=1, objective="cost", processes=1)
    costs = [option.cost_per_mtoken for option in search.options]
    assert costs == sorted(costs)
    assert all(option.split.pools and option.staleness_max <= 1 for option in search.options)
