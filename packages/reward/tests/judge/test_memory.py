"""What fits beside what, by hand; and the estimate of activations beside what is really alive in a pass."""

import weakref
from itertools import pairwise

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM

from tailrace.reward.judge.config import JudgeConfig
from tailrace.reward.judge.loading import decoder_shape
from tailrace.reward.judge.memory import WeightSizes, residency_order


def test_more_activations_leave_fewer_layers():
    sizes = WeightSizes(fixed_bytes=100, layer_bytes=(10,) * 8, slots=2)
    assert sizes.device_bytes(8) == 180
    assert sizes.device_bytes(7) == 180  # one is streamed: one buffer
    assert sizes.device_bytes(3) == 150  # three and two buffers
    assert [sizes.resident(200, activations) for activations in (0, 20, 21, 40, 55, 80, 81)] == [8, 8, 5, 4, 2, 0, None]
    assert sizes.least_bytes(55) == 175


def test_without_prefetch_there_is_one_buffer():
    sizes = WeightSizes(fixed_bytes=100, layer_bytes=(10,) * 8, slots=1)
    assert sizes.device_bytes(3) == 140
    assert sizes.resident(199, 25) == 6


def test_buffers_hold_the_largest_streamed_layer():
    sizes = WeightSizes(fixed_bytes=0, layer_bytes=(10, 40, 20, 30), slots=2)
    assert [sizes.device_bytes(n) for n in range(5)] == [80, 90, 110, 100, 100]


@pytest.mark.parametrize("layers", [1, 2, 3, 7, 8, 28])
def test_residents_are_spread_evenly(layers):
    order = residency_order(layers)
    assert sorted(order) == list(range(layers))
    assert order[0] == 0
    half = sorted(order[: (layers + 1) // 2])
    assert all(1 <= after - before <= 3 for before, after in pairwise(half)), half


class AliveBytes(TorchDispatchMode):
    """The most bytes of tensors that were made inside and alive at once."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        before = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._note(tensor.untyped_storage(), before)
        return out

    def _note(self, storage, before):
        if storage._cdata in self.seen or storage._cdata in before:
            return
        self.seen.add(storage._cdata)
        self.now += storage.nbytes()
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())

    def _gone(self, key, count):
        self.seen.discard(key)
        self.now -= count


SHAPES = {
    "wide feed-forward": {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 2},
    "wide attention": {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 8, "head_dim": 32},
    "wide residual": {"hidden_size": 256, "intermediate_size": 64, "num_attention_heads": 2, "head_dim": 16},
    "window": {"hidden_size": 64, "num_attention_heads": 2, "use_sliding_window": True, "sliding_window": 16},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_activations_are_never_more_than_the_estimate(shape, dtype):
    sizes = {"num_hidden_layers": 3, "num_key_value_heads": 2, "vocab_size": 50, "max_window_layers": 1}
    described = AutoConfig.for_model("qwen3", **({"intermediate_size": 64} | sizes | SHAPES[shape]))
    model = AutoModelForCausalLM.from_config(described, dtype=dtype, attn_implementation="sdpa").eval()
    estimate = decoder_shape(JudgeConfig("small", "{response}"), described, model, torch.device("cpu"))
    for items, tokens in ((1, 7), (1, 300), (5, 64)):
        inputs = torch.ones(items, tokens, dtype=torch.int64)
        with torch.no_grad(), AliveBytes() as alive:
            model(input_ids=inputs, use_cache=False, logits_to_keep=1)
        said = estimate.activation_bytes(items, tokens)
        assert alive.most <= said <= 3 * alive.most, (items, tokens, alive.most, said)


def test_the_count_of_alive_bytes_counts():
    with AliveBytes() as alive:
        first = torch.zeros(1000)
        second = first + 1
        view = second[:10]
        assert alive.now == 8000
        del first
        third = second * 2
        del second
        assert (alive.now, alive.most) == (8000, 8000)
        del third, view
    assert alive.now == 0
