"""Weight versions as training makes them: how many of their words change from one to the next, and made-up ones alike.

A *word* is 16 bits: a bfloat16 value, or half of a float32 one. So a float32 weight that moves changes its lower word, and its
upper one seldom.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tailrace.paramserver.codec.delta import DeltaCodec

Words = NDArray[np.uint16]
CHUNK_BYTES = 4 * 2**20
WARM_STEPS = 10  # Adam's moments settle, so that a step is of its usual size
STEPS = 5


@dataclass(frozen=True)
class Changed:
    """How much of the weights changes from one version to the next, as medians over the steps.

    Args:
        what: the weights.
        words: share of their 16-bit words.
        values: share of their values.
        encoded: bytes of the encoded copy over those of a whole one.
        lowest, highest: the smallest and largest share of words.
        steps: pairs of versions that were compared.
        far: share of the changed words that moved by more than a byte.
    """

    what: str
    words: float
    values: float
    encoded: float
    lowest: float
    highest: float
    steps: int
    far: float


def encoded_bytes(before: Words, after: Words) -> int:
    """Bytes of the encoded copy: of each chunk its delta, or the chunk itself where that is not worth it."""
    codec, old, new = DeltaCodec(), memoryview(before).cast("B"), memoryview(after).cast("B")
    total = 0
    for at in range(0, len(new), CHUNK_BYTES):
        part = new[at : at + CHUNK_BYTES]
        payload = codec.encode(old[at : at + CHUNK_BYTES], part)
        total += len(part) if payload is None else min(len(part), len(payload))
    return total


def compared(what: str, versions: list[Words], words_in_value: int) -> Changed:
    """Compare each version with the next one."""
    words, values, encoded, far = [], [], [], []
    for before, after in itertools.pairwise(versions):
        moved = before != after
        words.append(float(moved.mean()))
        values.append(float(moved.reshape(-1, words_in_value).any(axis=1).mean()))
        encoded.append(encoded_bytes(before, after) / after.nbytes)
        steps = (after - before)[moved].view(np.int16)
        far.append(float((np.abs(steps.astype(np.int32)) > 127).mean()) if steps.size else 0.0)
    return Changed(
        what,
        statistics.median(words),
        statistics.median(values),
        statistics.median(encoded),
        min(words),
        max(words),
        len(words),
        statistics.median(far),
    )


def trained(lr: float, dtype: str, *, hidden: int, layers: int, seed: int = 0) -> list[Words]:
    """Versions that AdamW makes of a small Qwen3 with float32 weights, published in a dtype, on sequences of random tokens."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    torch.set_num_threads(1)  # others may use the cores
    config = Qwen3Config(
        vocab_size=2048,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=hidden // 8,
        intermediate_size=3 * hidden,
        tie_word_embeddings=True,
    )
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    found = []
    for step in range(WARM_STEPS + STEPS + 1):
        if step >= WARM_STEPS:
            found.append(_words([parameter.detach() for parameter in model.parameters()], dtype))
        tokens = torch.randint(0, config.vocab_size, (4, 64))
        model(input_ids=tokens, labels=tokens).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return found


def of_run(run: Path, dtype: str) -> list[Words]:
    """The versions of a run, from its checkpoints, as they are published in a dtype."""
    from tailrace.trainer import checkpoints, load_weights_file

    root = run / "checkpoints"
    names = sorted(checkpoints(root))
    together = [name for name in names if name + 1 in names or name - 1 in names]
    if len(together) < 2:
        raise SystemExit(f"{root}: found the versions {names}, expected two that follow each other: checkpoint.keep=6")
    return [_words([tensor for _, tensor in load_weights_file(root / str(name))], dtype) for name in together]


def learning_rate(run: Path) -> float:
    """The learning rate of a run."""
    from tailrace.pipeline.run.directory import RunDirectory
    from tailrace.trainer import TrainerConfig

    return float(RunDirectory.open(run).configuration().trainer.options.get("lr", TrainerConfig().lr))


def made_up(nbytes: int, share: float, far: float, seed: int = 0) -> Iterator[Words]:
    """Versions without end, in which so many words change each time: by a unit in the last place, or by more for some.

    Args:
        nbytes: bytes of a version.
        share: share of the words that change.
        far: share of those that move by more than a byte.
    """
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(nbytes // 2, dtype=np.float32) * 0.02
    words: Words = (values.view(np.uint32) >> 16).astype(np.uint16)
    while True:
        yield words
        moved = generator.random(words.size, dtype=np.float32) < share
        steps = generator.choice(np.array([1, 2**16 - 1], np.uint16), words.size)
        wide = generator.random(words.size, dtype=np.float32) < far
        steps[wide] = generator.integers(256, 2**16 - 256, int(wide.sum()), dtype=np.uint16)
        words = words + np.where(moved, steps, np.uint16(0))


def _words(tensors: list[Any], dtype: str) -> Words:
    """All tensors in a row, as 16-bit words."""
    import torch

    parts = [tensor.to(getattr(torch, dtype)).contiguous().view(torch.int16).flatten() for tensor in tensors]
    words: Words = torch.cat(parts).numpy().view(np.uint16)
    return words
