"""The search finds what is best among what fits, keeps the bound, and says why the rest was refused."""

import re

import pytest

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.fleet.config import fleet_config
from tailrace.fleetsim.plan import mixes, plan, splits
from tailrace.fleetsim.plan.search import own_bound
from tailrace.fleetsim.run import simulate, simulate_many
from tailrace.pipeline.config.loading import merge, validate

CONTENT = {
    "app": "laminar",
    "pipeline": {"steps": 4, "prompts_per_step": 8, "samples_per_prompt": 4, "prompts_per_replica": 4},
    "rollout": {"max_tokens": 4096},
    "fleet": {
        "model": "Qwen2.5-7B",
        "trainer": {"gpus": 4},
        "rollout": {"gpus": 4},
        "workload": {"response": [{"median": 500, "sigma": 0.9}]},
    },
}


def test_splits_are_those_that_fit():
    found = splits(fleet_config(CONTENT["fleet"]), 8)
    assert {split.trainer + split.rollout for split in found} == {8}
    assert all(split.rollout % split.tensor_parallel == 0 for split in found)
    assert any(split.colocated for split in found)
    big = splits(fleet_config(CONTENT["fleet"] | {"model": "Qwen2.5-72B"}), 64)
    assert {split.tensor_parallel for split in big} == {4, 8}
    assert all(split.trainer % 8 == 0 for split in big)


def test_mixes_keep_the_bound_or_say_that_they_only_may():
    assert {mix.guaranteed for mix in mixes(0)} == {0}
    assert all(mix.guaranteed <= 3 for mix in mixes(3))


@pytest.mark.parametrize(
    ("admission", "bound"),
    [
        ("on-policy", 0),
        ("one-step", 1),
        ({"name": "bounded", "bound": 0}, 0),
        ({"name": "bounded", "bound": 2}, 2),
        ({"name": "inherent", "bound": 3}, 3),
        ({"name": "in-flight-cap", "bound": 2}, 2),
        ("inherent", 4),
    ],
)
def test_the_bound_is_the_configurations_own(admission, bound):
    assert own_bound(validate([("test", merge(CONTENT, {"pipeline": {"admission": admission}}))])) == bound


@pytest.mark.deep
def test_many_simulations_are_the_same_in_processes_of_their_own():
    config = validate([("test", CONTENT)])
    jobs = [(config, 0), (config, 1)]
    beside = dict(simulate_many(jobs, processes=2))
    assert beside == dict(simulate_many(jobs, processes=1))
    assert beside[1].tokens_per_s == simulate(config, seed=1).tokens_per_s


@pytest.mark.parametrize("after", [3, 40])
def test_an_interruption_returns_the_best_so_far_and_every_line_says_how_far_the_search_is(after):
    """After three simulations only splits were tried; after forty the mixes are under way."""
    lines = []

    def said(text):
        lines.append(text)
        if len(lines) == after:
            raise KeyboardInterrupt

    search = plan(validate([("test", CONTENT)]), gpus=8, bound=1, processes=1, said=said)
    assert (search.complete, search.simulations) == (False, after)
    assert search.expected > search.simulations
    assert all(option.staleness_max <= 1 for option in search.options)
    found = [
        re.fullmatch(r".*: \d+ of \d+; (\d+) of about (\d+) in all, about .+ left(; best so far .*)?", text)
        for text in lines
    ]
    assert all(found), lines
    assert [int(match[1]) for match in found] == list(range(1, after + 1))
    assert all(int(match[2]) > int(match[1]) for match in found)
    rates = [option.tokens_per_s for option in search.options]
    assert rates == sorted(rates, reverse=True)
    assert f"best so far {rates[0]:,.0f} tokens/s: " in lines[-1]


def test_an_interruption_before_anything_was_met_is_one():
    def said(text):
        raise KeyboardInterrupt

    content = merge(CONTENT, {"fleet": {"workload": {"response": [{"median": 500, "sigma": 0.9}]}}})
    with pytest.raises(KeyboardInterrupt):
        plan(validate([("test", content)]), gpus=8, bound=-1, processes=1, said=said)


@pytest.mark.timeout(240)
@pytest.mark.deep
def test_the_best_is_no_worse_than_any_of_the_last_rung_and_keeps_the_bound():
    search = plan(validate([("test", CONTENT)]), gpus=8, bound=1, processes=1)
    assert search.options
    assert (search.complete, search.expected) == (True, search.simulations)
    assert all(option.staleness_max <= 1 for option in search.options)
    rates = [option.tokens_per_s for option in search.options]
    assert rates == sorted(rates, reverse=True)
    best = search.options[0]
    again = simulate(
        validate([("test", merge(CONTENT, merge(best.settings, {"pipeline": {"steps": 9}, "fleet": {"warm_up": 4}})))])
    )
    assert min(rates) * 0.9 <= again.tokens_per_s


def test_a_search_by_cost_needs_prices():
    content = merge(CONTENT, {"fleet": {"rollout": {"device": "A100"}}})
    with pytest.raises(FleetError, match=r"no price of H800 and A100.*--price H800=2.1"):
        plan(validate([("test", content)]), gpus=8, objective="cost")


def test_too_few_devices_say_how_many_would_do():
    content = merge(CONTENT, {"fleet": {"model": "Qwen2.5-72B"}})
    with pytest.raises(FleetError, match="expected at least 8"):
        plan(validate([("test", content)]), gpus=3)
