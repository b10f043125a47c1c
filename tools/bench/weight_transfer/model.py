"""The weights that are moved: tensors of a Qwen3-like model in bfloat16, as many layers as the size asks for."""

from __future__ import annotations

import mmap
from collections.abc import Iterator

from tailrace.paramserver import RawTensor

HIDDEN, FEED_FORWARD, KEY_VALUE, VOCABULARY = 2048, 6144, 1024, 32768
_LAYER = {
    "input_layernorm": (HIDDEN,),
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KEY_VALUE, HIDDEN),
    "self_attn.v_proj": (KEY_VALUE, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "post_attention_layernorm": (HIDDEN,),
    "mlp.gate_proj": (FEED_FORWARD, HIDDEN),
    "mlp.up_proj": (FEED_FORWARD, HIDDEN),
    "mlp.down_proj": (HIDDEN, FEED_FORWARD),
}


def shapes(nbytes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a model of about so many bytes: layers, and an embedding if there is room for it."""
    layer = 2 * sum(_elements(shape) for shape in _LAYER.values())
    embedding = 2 * VOCABULARY * HIDDEN
    left = nbytes
    if nbytes > 2 * embedding:
        yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
        left -= embedding
    for number in range(max(1, left // layer)):
        for name, shape in _LAYER.items():
            yield f"model.layers.{number}.{name}.weight", shape


def total_bytes(nbytes: int) -> int:
    """The exact size of that model."""
    return sum(2 * _elements(shape) for _, shape in shapes(nbytes))


def arena(nbytes: int) -> mmap.mmap:
    """Shared memory whose pages are all there."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_SHARED)
    for start in range(0, nbytes, 2**20):
        memory[start : start + 2**20] = b"\1" * min(2**20, nbytes - start)
    return memory


def on(memory: memoryview, nbytes: int) -> dict[str, RawTensor]:
    """The model's tensors one after the other in this memory."""
    found, start = dict[str, RawTensor](), 0
    for name, shape in shapes(nbytes):
        size = 2 * _elements(shape)
        found[name] = RawTensor("bfloat16", shape, memory[start : start + size])
        start += size
    return found


def apart(nbytes: int) -> dict[str, RawTensor]:
    """The model's tensors, each in memory of its own."""
    return {
        name: RawTensor("bfloat16", shape, memoryview(arena(2 * _elements(shape)))) for name, shape in shapes(nbytes)
    }


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
