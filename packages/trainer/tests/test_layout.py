import dataclasses
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.trainer.layout import (
    EMPTY,
    OVERHEAD_TOKENS,
    PackedRow,
    TrainingSample,
    make_rows,
    micro_batches,
    packed_micro_batches,
    plan,
)
from tailrace.trainer.microbatch import to_tensors

samples = st.lists(
    st.builds(
        lambda prompt, length: TrainingSample((prompt,) * (prompt + 1), tuple(range(length)), 1.0),
        st.integers(0, 4),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=40,
)


@given(samples, st.integers(1, 5), st.integers(1, 400), st.integers(0, 120), st.booleans())
def test_every_sample_is_computed_once_within_the_budget(batch, ranks, budget, shared, packed):
    result = plan(batch, ranks=ranks, token_budget=budget, shared_prompt_tokens=shared, packed=packed)
    found = [s for hand in result for micro in hand for row in micro if row is not EMPTY for s in row.samples]
    assert sorted(map(id, found)) == sorted(map(id, batch))
    assert len({len(hand) for hand in result}) == 1  # collectives line up
    for hand in result:
        for micro in hand:
            lengths = [row.length for row in micro]
            assert len(micro) == 1 or (sum(lengths) if packed else len(micro) * max(lengths)) <= budget
            assert all(sample.prompt == row.prompt for row in micro if row is not EMPTY for sample in row.samples)


@given(samples, st.integers(0, 120))
def test_rows_share_a_prompt_up_to_the_limit(batch, limit):
    for row in make_rows(batch, limit):
        assert len(row.samples) == 1 or row.length <= limit


@settings(max_examples=30)
@given(samples)
def test_a_token_sees_its_prompt_and_its_own_response_only(batch):
    rows = make_rows(batch, 200)
    tensors = to_tensors(rows, torch.device("cpu"))
    if tensors.mask is None:
        assert all(len(row.samples) == 1 for row in rows)
        return
    for number, row in enumerate(rows):
        owner = [0] * len(row.prompt) + [n for n, s in enumerate(row.samples, 1) for _ in s.response]
        for query in range(row.length):
            seen = (tensors.mask[number, 0, query, : row.length] == 0).tolist()
            assert seen == [key <= query and owner[key] in (0, owner[query]) for key in range(row.length)]


def test_a_row_by_hand():
    # Prompt 7 8, responses 1 2 3 and 4. The row: 7 8 4 1 2 3 (short first), positions 0 1 2 2 3 4. The outputs that
    # predict 4 | 1 2 3 stand at 1 | 1 3 4.
    batch = [
        TrainingSample((7, 8), (1, 2, 3), 0.5, (-1.0, -2.0, -3.0), 2.0),
        TrainingSample((7, 8), (4,), 0.25, (-4.0,), -2.0),
    ]
    tensors = to_tensors(make_rows(batch, 10), torch.device("cpu"))
    assert tensors.input_ids.tolist() == [[7, 8, 4, 1, 2, 3]]
    assert tensors.position_ids.tolist() == [[0, 1, 2, 2, 3, 4]]
    assert tensors.index.tolist() == [1, 1, 3, 4]
    assert tensors.targets.tolist() == [4, 1, 2, 3]
    assert tensors.behaviour.tolist() == [-4.0, -1.0, -2.0, -3.0]
    assert tensors.advantages.tolist() == [-2.0, 2.0, 2.0, 2.0]
    assert tensors.weights.tolist() == pytest.approx([0.25, 0.5, 0.5, 0.5])


def test_a_row_with_an_answer_of_an_environment_by_hand():
    # Prompt 7 8, response 1 (9 9) 2 3 with an answer 9 9, and another response 4. The row: 7 8 4 1 9 9 2 3. Outputs that
    # predict 4 | 1, 2, 3 stand at 1 | 1, 5, 6: the answer is read, and nothing is asked of it.
    batch = [
        TrainingSample(
            (7, 8), (1, 9, 9, 2, 3), 0.5, (-1.0, 0.0, 0.0, -2.0, -3.0), 2.0, (True, False, False, True, True)
        ),
        TrainingSample((7, 8), (4,), 0.25, (-4.0,), -2.0),
    ]
    tensors = to_tensors(make_rows(batch, 10), torch.device("cpu"))
    assert tensors.input_ids.tolist() == [[7, 8, 4, 1, 9, 9, 2, 3]]
    assert tensors.position_ids.tolist() == [[0, 1, 2, 2, 3, 4, 5, 6]]
    assert tensors.index.tolist() == [1, 1, 5, 6]
    assert tensors.targets.tolist() == [4, 1, 2, 3]
    assert tensors.behaviour.tolist() == [-4.0, -1.0, -2.0, -3.0]
    assert tensors.advantages.tolist() == [-2.0, 2.0, 2.0, 2.0]
    assert tensors.weights.tolist() == pytest.approx([0.25, 0.5, 0.5, 0.5])


@settings(max_examples=60)
@given(samples, st.integers(0, 2**32), st.integers(0, 120))
def test_what_is_trained_on_is_predicted_by_the_token_before_it(batch, seed, shared):
    draw = random.Random(seed)
    batch = [dataclasses.replace(sample, generated=_flags(draw, len(sample.response))) for sample in batch]
    for row in make_rows(batch, shared):
        tensors = to_tensors([row], torch.device("cpu"))
        expected, start = [], len(row.prompt)
        for sample in row.samples:
            for place, token in enumerate(sample.response):
                before = start + place - 1 if place else len(row.prompt) - 1
                if sample.generated[place]:
                    expected.append((before, token, pytest.approx(sample.weight)))
            start += len(sample.response)
        found = zip(tensors.index.tolist(), tensors.targets.tolist(), tensors.weights.tolist(), strict=True)
        assert list(found) == expected
        assert tensors.input_ids[0].tolist() == [*row.prompt, *(t for sample in row.samples for t in sample.response)]


def _flags(draw, length):
    flags = [draw.random() < 0.6 for _ in range(length)]
    flags[draw.randrange(length)] = True
    return tuple(flags)


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=9), st.integers(1, 300))
def test_micro_batches_cost_as_little_as_the_best_cut_of_the_sorted_rows(lengths, budget):
    rows = [PackedRow((0,), (TrainingSample((0,), (0,) * length, 1.0),)) for length in lengths]

    def cost(cuts):
        if not all(len(cut) == 1 or len(cut) * cut[0].length <= budget for cut in cuts):
            return float("inf")
        return sum(len(cut) * cut[0].length + OVERHEAD_TOKENS for cut in cuts)

    ordered = sorted(rows, key=lambda row: row.length, reverse=True)
    every_cut = []
    for bits in range(1 << (len(ordered) - 1)):
        ends = [i + 1 for i in range(len(ordered) - 1) if bits >> i & 1] + [len(ordered)]
        every_cut.append([ordered[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True)])
    assert cost(micro_batches(rows, budget)) == min(map(cost, every_cut))


@given(st.lists(st.integers(1, 60), min_size=1, max_size=40), st.integers(1, 300))
def test_no_two_packed_micro_batches_fit_into_one(lengths, budget):
    rows = [PackedRow((0,), (TrainingSample((0,), (0,) * length, 1.0),)) for length in lengths]
    sizes = [sum(row.length for row in micro) for micro in packed_micro_batches(rows, budget)]
    assert all(one + other > budget for place, one in enumerate(sizes) for other in sizes[:place])


@settings(max_examples=60)
@given(samples, st.integers(0, 120))
def test_a_packed_micro_batch_has_the_values_of_the_padded_one_at_its_own_places(batch, shared):
    batch = [
        dataclasses.replace(
            each, advantage=float(number), generated=tuple(i % 3 != 1 for i in range(len(each.response)))
        )
        for number, each in enumerate(batch)
    ]
    rows = sorted(make_rows(batch, shared), key=lambda row: len(row.samples) == 1)
    padded = to_tensors(rows, torch.device("cpu"))
    packed = to_tensors(rows, torch.device("cpu"), packed=True)
    for name in ("targets", "behaviour", "advantages", "weights", "response", "versions"):
        assert torch.equal(getattr(packed, name), getattr(padded, name)), name
    lengths = [row.length for row in rows]
    assert packed.sequences.lengths == tuple(lengths)
    assert packed.mask is None
    assert packed.input_ids.shape == (1, sum(lengths))
    # what each token reads, and where in its own row it stands
    longest = max(lengths)
    for number, (length, start) in enumerate(
        zip(lengths, [sum(lengths[:n]) for n in range(len(lengths))], strict=True)
    ):
        part = slice(start, start + length)
        assert torch.equal(packed.input_ids[0, part], padded.input_ids[number, :length])
        if padded.position_ids is not None:
            assert torch.equal(packed.position_ids[0, part], padded.position_ids[number, :length])
        mask = packed.sequences.masks[number]
        assert (mask is None) == (len(rows[number].samples) == 1)
        if mask is not None:
            assert torch.equal(mask[0, 0], padded.mask[number, 0, :length, :length])
        at = padded.index // longest == number
        assert torch.equal(packed.index[at] - start, padded.index[at] - number * longest)
    plain = [row.length for row in rows if len(row.samples) == 1]
    assert packed.sequences.starts.tolist() == [sum(plain[:n]) for n in range(len(plain) + 1)]
