"""The modelled prefix cache, beside a whole run that has one: prefill is charged for what it lacks."""

import pytest

from tailrace.contracts import Snapshot
from tailrace.fleetsim import simulate
from tailrace.fleetsim.engine import Work
from tailrace.fleetsim.members.replica import Prefixes


def work(name, *, prompt=100, done=0):
    return Work(name, prompt, done, done + 10)


def test_what_left_is_found_again_until_others_have_taken_its_room():
    cache = Prefixes(1.0)
    cache.left({"0.0": 150}, free=300.0)
    cache.took(300)
    back = work("0.0", done=60)
    cache.find([(back, 0)], free=0.0)
    assert (back.cached_tokens, cache.tokens) == (150, 150)
    cache.left({"0.0": 200}, free=300.0)
    cache.took(301)
    late = work("0.0", done=100)
    cache.find([(late, 7)], free=0.0)
    assert late.cached_tokens == 0


def test_a_prompt_is_computed_once_for_its_group_and_never_under_other_weights():
    cache = Prefixes(0.5)
    first, second, other = work("0.0"), work("0.1"), work("1.0")
    cache.find([(first, 0), (second, 0), (other, 1)], free=1_000.0)
    assert [one.cached_tokens for one in (first, second, other)] == [0, 50, 0]
    cache.clear()
    third = work("0.2")
    cache.find([(third, 0)], free=1_000.0)
    assert third.cached_tokens == 0


def test_without_a_share_there_is_none():
    config = turns(0.0, "least-loaded")
    assert cached(simulate(config)) == 0


def turns(share, routing):
    """Two replicas and conversations with long prompts."""
    return {
        "app": "laminar",
        "pipeline": {
            "steps": 3, "prompts_per_step": 8, "samples_per_prompt": 4, "prompts_per_replica": 8, "routing": routing,
        },
        "rollout": {"max_tokens": 4096},
        "fleet": {
            "model": "Qwen2.5-7B",
            "trainer": {"gpus": 2},
            "rollout": {"gpus": 2, "prefix_cached": share},
            "workload": {
                "prompt": {"median": 2000, "sigma": 0.3, "cap": 4000},
                "response": {"median": 400, "sigma": 0.5},
                "environment": {"calls": {"preset": "tool-calling"}, "latency": {"median": 2.0, "sigma": 0.5}},
            },
        },
    }  # fmt: skip


def cached(result):
    """Tokens that prefix caches had, by the replicas' own reports."""
    last = {event.replica: event.cached_tokens for _, event in result.events if isinstance(event, Snapshot)}
    return sum(last.values())


@pytest.mark.parametrize("routing", ["least-loaded", "prefix-aware"])
def test_a_run_is_charged_for_what_its_caches_lack(routing):
    without, with_cache = (simulate(turns(share, routing)) for share in (0.0, 1.0))
    assert with_cache.lost_trajectories == without.lost_trajectories == 0
    assert cached(with_cache) > 0
    assert with_cache.prefill_share < without.prefill_share
