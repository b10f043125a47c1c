"""A batch that replicas generate alone, turns with their environments included."""

from dataclasses import dataclass

import pytest

from tailrace.fleetsim.fleet.config import RolloutFleet
from tailrace.fleetsim.fleet.generation import BatchSample, generate

STEP_S = 0.01


@dataclass
class Decode:
    kv_capacity_tokens: int = 1000
    per_token_s: float = 0.0

    def fixed_s(self, running):
        del running
        return STEP_S


class Prefill:
    def seconds(self, tokens, cached=0):
        return 0.001 * (tokens - cached)


def ends(*queues, decode=None, **rollout):
    table = RolloutFleet(gpus=1, **{"max_running": 8, **rollout})
    return [
        (round(at, 9), name) for at, name in generate((decode or Decode(), Prefill()), [list(q) for q in queues], table)
    ]


def one(name, *turns, prompt=10):
    return BatchSample(name, prompt, turns)


def test_a_turn_then_the_environment_then_the_next_turn():
    first_s = 0.001 * 10 + 4 * STEP_S
    second_s = 0.001 * 14 + 3 * STEP_S
    assert ends([one("a", (4, 2.0), (3, 0.0))]) == [(pytest.approx(first_s + 2.0 + second_s), "a")]


def test_a_share_of_the_context_is_still_cached_afterwards():
    whole, cached = (ends([one("a", (4, 2.0), (3, 0.0))], prefix_cached=share)[0][0] for share in (0.0, 0.75))
    assert whole - cached == pytest.approx(0.001 * 10)  # of the 14 tokens of the context


def test_the_environment_frees_the_cache_for_others():
    small = Decode(kv_capacity_tokens=40)
    told = ends([one("a", (4, 5.0), (3, 0.0)), one("b", (10, 0.0), prompt=28)], decode=small)
    assert [name for _, name in told] == ["b", "a"]


def test_who_comes_back_queues_at_the_end():
    small = Decode(kv_capacity_tokens=40)
    queue = [one("a", (1, 0.0), (3, 0.0)), one("b", (10, 0.0), prompt=28), one("c", (10, 0.0), prompt=28)]
    assert [name for _, name in ends(queue, decode=small)] == ["b", "c", "a"]


def test_replicas_do_not_wait_for_each_other():
    alone = ends([one("a", (4, 2.0), (3, 0.0))])
    both = ends([one("a", (4, 2.0), (3, 0.0))], [one("b", (5, 0.0)), one("c", (9, 1.0), (9, 1.0), (1, 0.0))])
    assert both[:1] == alone
    assert [name for _, name in both] == ["a", "b", "c"]


def test_the_same_tokens_in_one_turn_take_as_long_without_environment_and_with_the_context_cached():
    (cut, whole) = (ends([one("a", *turns)], prefix_cached=1.0)[0][0] for turns in ([(4, 0.0), (3, 0.0)], [(7, 0.0)]))
    assert cut == pytest.approx(whole)
