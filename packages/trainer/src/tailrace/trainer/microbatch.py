"""A micro-batch as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tailrace.trainer.layout import EMPTY, PackedRow
from tailrace.trainer.varlen_attention import Sequences


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Inputs of one forward pass and of its loss.

    Args:
        input_ids: ``[rows, length]``, padded on the right with token 0; of a packed one ``[1, tokens]``, all rows one after
            another.
        position_ids: ``[rows, length]``; None if every row is a plain sequence. In a packed one they restart with each row.
        mask: additive attention mask ``[rows, 1, length, length]``; None if causal attention suffices, which never attends
            to the padding on the right.
        index: ``[tokens]``, the position in the flattened input whose output predicts each response token that is trained on.
            Tokens that environments answered are inputs alone: no value below is of one.
        targets: ``[tokens]``, the response tokens that are trained on.
        behaviour: ``[tokens]``, their log-probabilities when they were drawn; empty for supervised samples.
        advantages: ``[tokens]``, the advantage of each token's response.
        weights: ``[tokens]``, weight of each token in the loss.
        response: ``[tokens]``, which response of the micro-batch each token is of, from 0.
        versions: ``[tokens]``, the weight version that drew each token; empty if that is not known.
        counted: 0 for the row of weight 0 that only takes part in collectives, else 1.
        sequences: where the rows of a packed one are, which attend to themselves alone; None: it is padded.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    mask: Tensor | None
    index: Tensor
    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    weights: Tensor
    response: Tensor
    versions: Tensor
    counted: int
    sequences: Sequences | None = None


def to_tensors(
    rows: Sequence[PackedRow], device: torch.device, dtype: torch.dtype = torch.float32, *, packed: bool = False
) -> MicroBatch:
    """Build the tensors of a micro-batch for passes in `dtype`. Values for each token are at least float32.

    Args:
        rows: the rows.
        device, dtype: of the tensors.
        packed: whether rows follow each other without padding, and those of several responses come first. Otherwise they are
            padded.
    """
    wide = np.float64 if dtype is torch.float64 else np.float32
    length = max(row.length for row in rows)
    shared = any(len(row.samples) > 1 for row in rows)
    starts = list(accumulate((row.length if packed else length for row in rows), initial=0))
    ids: npt.NDArray[np.int64] = np.zeros(starts[-1], dtype=np.int64)
    positions: npt.NDArray[np.int64] = np.zeros(starts[-1], dtype=np.int64)
    # The response of each token: 0 for the prompt, which all responses attend to, -1 for padding.
    segments: npt.NDArray[np.int32] = np.full(starts[-1], -1, dtype=np.int32)
    samples = [sample for row in rows for sample in row.samples]
    trained: list[npt.NDArray[np.int64]] = [np.asarray(sample.trained, dtype=np.int64) for sample in samples]
    sizes = [len(places) for places in trained]
    index: npt.NDArray[np.int64] = np.empty(sum(sizes), dtype=np.int64)
    filled = 0
    of_sample = iter(trained)
    for first, row in zip(starts, rows, strict=False):
        prompt = len(row.prompt)
        start = first + prompt
        ids[first:start] = row.prompt
        positions[first:start] = range(prompt)
        segments[first:start] = 0
        offset = start
        for which, sample in enumerate(row.samples, 1):
            size = len(sample.response)
            ids[offset : offset + size] = sample.response
            positions[offset : offset + size] = range(prompt, prompt + size)
            segments[offset : offset + size] = which
            # The last prompt token predicts the first response token, each response token the next.
            places = next(of_sample)
            index[filled : filled + len(places)] = np.where(places == 0, start, offset + places) - 1
            filled += len(places)
            offset += size

    def per_token(values: Sequence[float]) -> Tensor:
        return torch.from_numpy(np.repeat(np.asarray(values, dtype=wide), sizes)).to(device)

    both = list(zip(samples, trained, strict=True))
    targets = np.concatenate([np.asarray(sample.response, np.int64)[places] for sample, places in both])
    drawn = [np.asarray(sample.behaviour, wide)[places] for sample, places in both if sample.behaviour]
    behaviour = np.concatenate(drawn) if drawn else np.empty(0, wide)
    made = [np.asarray(sample.versions, np.int64)[places] for sample, places in both if sample.versions]
    versions = np.concatenate(made) if made else np.empty(0, np.int64)
    shape = (1 if packed else len(rows), -1)
    of_tokens = torch.from_numpy(segments).to(device)
    sequences: Sequences | None = None
    if packed:
        parts = zip(rows, of_tokens.split([row.length for row in rows]), strict=True)
        masks = [_mask(part[None], dtype) if len(row.samples) > 1 else None for row, part in parts]
        sequences = Sequences.of([row.length for row in rows], masks, device)
    return MicroBatch(
        torch.from_numpy(ids).view(shape).to(device),
        torch.from_numpy(positions).view(shape).to(device) if shared or packed else None,
        _mask(of_tokens.view(shape), dtype) if shared and not packed else None,
        torch.from_numpy(index).to(device),
        torch.from_numpy(targets).to(device),
        torch.from_numpy(behaviour).to(device),
        per_token([sample.advantage for sample in samples]),
        per_token([sample.weight for sample in samples]),
        torch.from_numpy(np.repeat(np.arange(len(samples)), sizes)).to(device),
        torch.from_numpy(versions).to(device),
        0 if len(rows) == 1 and rows[0] is EMPTY else 1,
        sequences,
    )


def _mask(segments: Tensor, dtype: torch.dtype) -> Tensor:
    order = torch.arange(segments.shape[1], device=segments.device)
    keys = segments[:, None, :]
    visible = (order[:, None] >= order[None, :]) & ((segments[:, :, None] == keys) | (keys == 0))
    bias = torch.zeros(visible.shape, dtype=dtype, device=segments.device)
    return bias.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]
