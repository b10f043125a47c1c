"""The KV cache in whole blocks is what its trajectories fill, at any time."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.fleetsim.cost import DecodeCost, PrefillCost
from tailrace.fleetsim.engine import ModelledEngine, Work
from tailrace.fleetsim.profile.fleet import PagedEngine


def engine(block, capacity=6_000):
    made = PagedEngine(DecodeCost.fitted(1e-6, 0.0, 1e-4, 5e-3, capacity), PrefillCost(1e-5), max_running=24)
    made.block_tokens = block
    return made


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 99_999), st.sampled_from([1, 7, 16, 128]), st.floats(0.0, 1.5))
def test_it_is_the_sum_over_the_trajectories_of_the_batch(seed, block, at):
    numbers = random.Random(seed)
    made = engine(block)
    prompts = {f"t{i}": numbers.randint(1, 90) for i in range(30)}
    made.add([Work(name, prompt, 0, numbers.randint(1, 120)) for name, prompt in prompts.items()], 0.0)
    made.advance(at)
    share, running = made.kv_share, made.running
    in_batch = [name for name, _ in made.clear(at)][:running]  # the batch comes first
    assert len(in_batch) == running
    held = [prompts[name] for name in in_batch]
    copy = engine(block)
    numbers = random.Random(seed)
    prompts = {f"t{i}": numbers.randint(1, 90) for i in range(30)}
    copy.add([Work(name, prompt, 0, numbers.randint(1, 120)) for name, prompt in prompts.items()], 0.0)
    done = dict(copy.clear(at))
    tokens = [prompt + done[name] for name, prompt in zip(in_batch, held, strict=True)]
    assert share == pytest.approx(sum(-(-one // block) * block for one in tokens) / 6_000)


def test_blocks_of_one_token_are_the_plain_engine():
    plain = ModelledEngine(DecodeCost.fitted(1e-6, 0.0, 1e-4, 5e-3, 900), PrefillCost(1e-5), max_running=24)
    paged = engine(1, capacity=900)
    for one in (plain, paged):
        one.add([Work(f"t{i}", 20, 0, 40 + i) for i in range(12)], 0.0)
        one.advance(0.3)
    assert paged.kv_share == plain.kv_share
