"""The samples of prompts as tensors, and the order of two samples where truncation leaves it known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tailrace.ranker.censoring import all_samples, quantiles
from tailrace.ranker.example import Example

_MOST_SAMPLES = 32  # of a prompt: pairs of samples are compared
_LEAST_SPREAD = 0.05  # of ln tokens


@dataclass(frozen=True)
class Samples:
    """Samples of n prompts, S columns.

    Args:
        logs: [n, S] ln tokens, 0 where there is none.
        cut: [n, S] truncated.
        there: [n, S] whether there is a sample.
    """

    logs: Tensor
    cut: Tensor
    there: Tensor

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Samples:
        """The samples of examples, of each at most the first 32."""
        width = min(_MOST_SAMPLES, max(len(example.lengths) for example in examples))
        logs = torch.zeros(len(examples), width)
        cut, there = torch.zeros(logs.shape, dtype=torch.bool), torch.zeros(logs.shape, dtype=torch.bool)
        for row, example in enumerate(examples):
            samples = example.samples[:width]
            logs[row, : len(samples)] = torch.tensor([math.log(length) for length, _ in samples])
            cut[row, : len(samples)] = torch.tensor([truncated for _, truncated in samples])
            there[row, : len(samples)] = True
        return cls(logs, cut, there)

    def __getitem__(self, rows: Tensor) -> Samples:
        return Samples(self.logs[rows], self.cut[rows], self.there[rows])


def known_longer(logs: Tensor, cut: Tensor, there: Tensor, others: Samples) -> Tensor:
    """Which samples are known to be longer than which of the others: the other ended, and at fewer tokens.

    A truncated sample is longer than one that ended where it was cut, too.

    Args:
        logs, cut, there: [...], samples.
        others: samples of shape [m, T].

    Returns:
        [..., m, T] booleans.
    """
    mine, theirs = logs[..., None, None], others.logs
    longer = (mine > theirs) | (cut[..., None, None] & (mine == theirs))
    return longer & ~others.cut & others.there & there[..., None, None]


@dataclass(frozen=True)
class Scale:
    """Converts between ln tokens and what a network puts out.

    Args:
        middle: ln of the median of all samples.
        spread: between their p50 and p90, in ln tokens.
        most: tokens of the longest; no prediction exceeds it.
    """

    middle: float
    spread: float
    most: float

    def grown(self, examples: Sequence[Example]) -> Scale:
        """The old scale, which the weights know, up to the longest sample of old and new ones."""
        return Scale(self.middle, self.spread, max(self.most, Scale.of(examples).most))

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Scale:
        """The scale of all samples."""
        samples = all_samples(examples)
        p50, p90 = quantiles(samples)
        return cls(math.log(p50), max(math.log(p90 / p50), _LEAST_SPREAD), float(max(length for length, _ in samples)))
