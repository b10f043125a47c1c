"""Attention of a packed row beside a token-by-token sum over what each token may see; and what is not taken for it."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig

from tailrace.trainer.varlen_attention import IMPLEMENTATION, Sequences, attention_forward, use_in, varlen_attention


def by_hand(query, key, value, lengths, seen, scale):
    """Token by token: the softmax over what it sees of its own sequence, `seen(sequence, query, key)`."""
    heads, group = query.shape[1], query.shape[1] // key.shape[1]
    start = 0
    rows = []
    for sequence, length in enumerate(lengths):
        for place in range(length):
            keys = [start + other for other in range(length) if seen(sequence, place, other)]
            rows.append(
                torch.stack(
                    [
                        torch.stack([query[0, h, start + place] @ key[0, h // group, k] * scale for k in keys]).softmax(
                            0
                        )
                        @ value[0, h // group, keys]
                        for h in range(heads)
                    ]
                )
            )
        start += length
    return torch.stack(rows)[None]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.integers(0, 4),
    st.sampled_from([(1, 1), (4, 2), (2, 1)]),
    st.integers(0, 2**31),
)
def test_values_and_gradients_are_those_of_each_sequence_alone(lengths, masked, heads, seed):
    draw, places = torch.Generator().manual_seed(seed), random.Random(seed)
    many, few = heads
    q, k, v = (
        torch.randn(1, number, sum(lengths), 8, generator=draw, dtype=torch.float64, requires_grad=True)
        for number in (many, few, few)
    )
    hidden = {}
    masks = []
    for number, length in enumerate(lengths):
        if number >= masked:
            masks.append(None)
            continue
        # a token never sees itself hidden, and some of what is before it
        hidden[number] = {(a, b) for a in range(length) for b in range(a) if places.random() < 0.5}
        mask = torch.zeros(1, 1, length, length, dtype=torch.float64)
        for a in range(length):
            for b in range(length):
                if b > a or (a, b) in hidden[number]:
                    mask[0, 0, a, b] = torch.finfo(torch.float64).min
        masks.append(mask)
    sequences = Sequences.of(lengths, masks, torch.device("cpu"))
    found = varlen_attention(q, k, v, sequences, 0.3)
    expected = by_hand(q, k, v, lengths, lambda s, a, b: b <= a and (a, b) not in hidden.get(s, ()), 0.3)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)
    weights = torch.randn(found.shape, generator=draw, dtype=torch.float64)
    for mine, reference in zip(
        torch.autograd.grad((found * weights).sum(), (q, k, v)),
        torch.autograd.grad((expected * weights).sum(), (q, k, v)),
        strict=True,
    ):
        torch.testing.assert_close(mine, reference, atol=1e-12, rtol=0)


def test_without_sequences_it_is_transformers_own():
    lm = AutoModelForCausalLM.from_config(
        LlamaConfig(
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            intermediate_size=24,
            vocab_size=31,
        )
    )
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    mask = torch.zeros(2, 1, 3, 3).masked_fill_(
        ~torch.ones(3, 3, dtype=torch.bool).tril(), torch.finfo(torch.float32).min
    )
    before = [lm(input_ids=ids).logits, lm(input_ids=ids, attention_mask=mask).logits]
    assert use_in(lm)
    assert lm.config._attn_implementation == IMPLEMENTATION
    after = [lm(input_ids=ids).logits, lm(input_ids=ids, attention_mask=mask).logits]
    assert all(map(torch.equal, before, after))


@pytest.mark.parametrize(
    ("options", "named"),
    [({"softcap": 30.0}, "softcap"), ({"sliding_window": 8}, "sliding_window"), ({"s_aux": torch.zeros(1)}, "s_aux")],
)
def test_what_a_models_attention_does_besides_is_refused_by_name(options, named):
    q = torch.zeros(1, 1, 3, 8)
    sequences = Sequences.of([1, 2], [None, None], torch.device("cpu"))
    with pytest.raises(TypeError, match=named):
        attention_forward(None, q, q, q, None, varlen=sequences, **options)
    assert math.isfinite(float(attention_forward(None, q, q, q, None, varlen=sequences, use_cache=False)[0].sum()))


def test_dropout_drops_weights_of_a_packed_row_and_scales_the_others():
    length, share = 6, 0.25
    q = k = torch.zeros(1, 1, 2 * length, length)
    v = torch.eye(length).repeat(2, 1)[None, None]  # what attention gives is its weights
    sequences = Sequences.of([length, length], [None, None], torch.device("cpu"))
    torch.manual_seed(0)
    found, _ = attention_forward(None, q, k, v, None, varlen=sequences, dropout=share)
    even = (torch.ones(length, length).tril() / torch.arange(1, length + 1)[:, None]).repeat(2, 1)
    kept = found[0, :, 0] / even.where(even > 0, 1.0)
    torch.testing.assert_close(kept, (kept > 0).float() / (1 - share))
    inside = kept[even > 0]
    assert 0 < int((inside > 0).sum()) < len(inside)
