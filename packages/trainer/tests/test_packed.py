"""A batch whose tokens come later plans, checks and reads as the same batch with its tokens."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from tailrace.contracts import FinishReason, Segment
from tailrace.trainer import BatchError, TrainerConfig
from tailrace.trainer.batch import grpo_samples
from tailrace.trainer.layout import plan
from tailrace.trainer.microbatch import to_tensors
from tailrace.trainer.packed import PackedBatch, load_tokens
from tailrace.trainer.testing import PackedData, make_experiences

CPU = torch.device("cpu")


def packed_of(experiences, **options):
    data = PackedData(experiences)
    return data, PackedBatch(data.outlines(list(data.made)), data.packed, **options)


def planned(experiences, config, ranks):
    (samples,) = grpo_samples([experiences], config, 31)
    return plan(samples, ranks=ranks, token_budget=60, shared_prompt_tokens=40)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_rank_plans_and_computes_what_it_would_with_all_tokens(seed, ranks, dtype):
    whole = make_experiences(5, 4, vocab_size=31, seed=seed, turns=1 + seed % 3, max_prompt=2, forks=seed % 2 * 0.5)
    config = TrainerConfig(normalisation="sequence", advantages="batch")
    expected = planned(whole, config, ranks)
    seen = []
    for rank in range(ranks):
        data, batch = packed_of(whole, slice_bytes=200)
        mine = planned(batch.experiences, config, ranks)[rank]
        assert data.fetched == [], "fetched before it was known what is needed"
        load_tokens(sample for rows in mine for row in rows for sample in row.samples)
        before = sum(map(len, data.fetched))
        for rows, others in zip(mine, expected[rank], strict=True):
            found, wanted = to_tensors(rows, CPU, dtype), to_tensors(others, CPU, dtype)
            for name in wanted.__slots__:
                one, other = getattr(found, name), getattr(wanted, name)
                assert torch.equal(one, other) if isinstance(other, torch.Tensor) else one == other, (
                    f"seed {seed}: {name}"
                )
        assert sum(map(len, data.fetched)) == before, "more was fetched than the rows need"
        assert all(sum(8 * len(data.made[name].tokens) for name in call[:-1]) <= 200 for call in data.fetched)
        seen += [name for call in data.fetched for name in call]
    assert set(seen) == {one.trajectory for one in whole}
    several = {one.trajectory for one in whole if len(one.contexts) > 1}  # which ranks may share
    assert all(seen.count(name) == 1 or name in several for name in seen)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_an_experience(seed):
    whole = make_experiences(4, 3, vocab_size=31, seed=seed, turns=3, forks=0.3)
    whole += [replace(whole[0], trajectory="cut", finish=FinishReason.LENGTH, completed_version=7, metadata={"a": 1})]
    whole += [
        replace(whole[0], trajectory="empty", segments=()),
        replace(whole[0], trajectory="none", segments=(Segment(3, (), ()),)),
    ]
    data, batch = packed_of(whole)
    known = ("trajectory", "group", "finish", "reward", "completed_version", "metadata", "spans", "generated")
    known += ("generated_tokens", "oldest_version", "newest_version", "turns", "contexts")
    for one, other in zip(batch.experiences, whole, strict=True):
        for name in known:
            assert getattr(one, name) == getattr(other, name), name
    assert data.fetched == []
    for one, other in zip(batch.experiences, whole, strict=True):
        for name in ("prompt", "segments", "tokens", "logprobs", "last_turn"):
            assert getattr(one, name) == getattr(other, name), name
    assert len(data.fetched) == 1  # a backend that wants all gets all at once


def test_values_that_are_there_read_as_a_sequence():
    _, batch = packed_of(make_experiences(1, 1, vocab_size=31, seed=1))
    (sample,), (whole,) = batch.experiences[0].samples(1.0, 0.0), make_experiences(1, 1, vocab_size=31, seed=1)
    assert (tuple(sample.response), sample.response[0], sample.response[:2]) == (
        whole.tokens,
        whole.tokens[0],
        whole.tokens[:2],
    )
    assert np.asarray(sample.prompt).tolist() == list(whole.prompt)
    assert len({sample.prompt, batch.experiences[0].samples(2.0, 0.0)[0].prompt}) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward": None}, "found the reward None on trajectory 0.0, expected a number"),
        ({"prompt": ()}, "found an empty prompt on trajectory 0.0"),
        ({"segments": (Segment(0, (31,), (-1.0,)),)}, "found the token 31 on trajectory 0.0, expected one below 31"),
        (
            {"segments": (Segment(0, (3,), (float("nan"),)),)},
            "found a log-probability that is not finite on trajectory 0.0",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused_by_every_rank_alike_without_its_tokens(change, said):
    whole = make_experiences(2, 2, vocab_size=31, seed=0)
    data, batch = packed_of([replace(whole[0], **change), *whole[1:]])
    with pytest.raises(BatchError, match=said):
        grpo_samples([batch.experiences], TrainerConfig(), 31)
    assert data.fetched == []


def test_an_answer_that_is_not_the_outlines_is_refused():
    whole = make_experiences(1, 2, vocab_size=31, seed=0)
    data, batch = packed_of(whole)
    data.made["0.1"] = whole[0]
    with pytest.raises(ValueError, match=r"trajectory 0\.1: found"):
        batch.load(batch.experiences)


def test_what_was_fetched_is_dropped_at_once():
    _, batch = packed_of(make_experiences(2, 2, vocab_size=31, seed=0))
    batch.load(batch.experiences)
    held = [weakref.ref(array) for one in batch.experiences for array in (*one.here(), one.prompt_array())]
    gc.disable()
    try:
        batch.release()
        assert [each() for each in held] == [None] * len(held)
    finally:
        gc.enable()
