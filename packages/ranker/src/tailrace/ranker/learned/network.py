"""Networks that read a prompt and put out its place in the order and quantiles of its lengths."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The quantiles. Each stands for a fifth of the responses, so that their mean is that of the lengths (midpoint rule)."""
P50, P90 = 2, 4
"""Their places."""
OUTPUTS = 1 + len(SHARES)
"""The place in the order, which only the loss of the order reads; p50, and the distances of neighbours, in units of `Scale`."""


class Bidirectional(nn.Module):
    """A transformer that sees a prompt from both sides, pooled to one vector: the mean and the maximum over its tokens.

    Args:
        vocabulary: tokens.
        most_tokens: of a prompt.
        width, layers, heads, mlp, dropout: its shape.
    """

    def __init__(
        self, *, vocabulary: int, most_tokens: int, width: int, layers: int, heads: int, mlp: int, dropout: float
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(most_tokens, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, mlp, dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, norm=nn.LayerNorm(width), enable_nested_tensor=False)
        self.width = 2 * width

    def forward(self, ids: Tensor, there: Tensor) -> Tensor:
        """Vectors [n, width] of prompts [n, T], `there` where a token is."""
        states = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        return _pooled(self.layers(states, src_key_padding_mask=~there), there)


class Causal(nn.Module):
    """A given causal language model without its output layer, pooled alike.

    Args:
        model: a transformers model that gives ``last_hidden_state``.
        computing: begins the context in which it computes.
    """

    def __init__(self, model: Any, computing: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__()
        self.model, self._computing = model, computing
        self.width = 2 * int(model.config.hidden_size)
        self.norm = nn.LayerNorm(self.width)  # states of pretrained models have a few enormous elements

    def forward(self, ids: Tensor, there: Tensor) -> Tensor:
        """Vectors [n, width] of prompts [n, T], `there` where a token is."""
        with self._computing():
            found = self.model(input_ids=ids, attention_mask=there.long(), use_cache=False)
        normed: Tensor = self.norm(_pooled(found.last_hidden_state.float(), there))
        return normed


class Head(nn.Module):
    """A small network from vectors to outputs.

    Args:
        inputs: elements of a vector.
        width: of the layer between.
        dropout: before each layer.
        examples: [n, inputs] of which the mean and the spread are taken away; None to take nothing.
    """

    def __init__(self, inputs: int, width: int, dropout: float, examples: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(inputs) if examples is None else examples.mean(0))
        spread = torch.ones(inputs) if examples is None else examples.std(0, correction=0)
        # What never differs says nothing, and its first other value must not be a million spreads away.
        self.register_buffer("spread", torch.where(spread > 1e-6, spread, torch.ones(inputs)))
        self.between = nn.Linear(inputs, width)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, OUTPUTS)

    def forward(self, vectors: Tensor) -> Tensor:
        """Outputs [n, OUTPUTS] of vectors [n, inputs]."""
        standard = ((vectors - self.middle) / self.spread).clamp(-6.0, 6.0)
        outputs: Tensor = self.out(self.dropout(F.gelu(self.between(self.dropout(standard)))))
        return outputs


class Reader(nn.Module):
    """A backbone and a head, which also sees features of the text.

    Args:
        backbone: `Bidirectional` or `Causal`.
        features: [n, F] of the examples, for their mean and spread; zeros to be loaded into.
        dropout: of the head.
    """

    def __init__(self, backbone: Bidirectional | Causal, features: Tensor, dropout: float) -> None:
        super().__init__()
        self.backbone = backbone
        width = backbone.width
        self.head = Head(width + features.shape[1], width, dropout, F.pad(features, (width, 0)))

    def forward(self, ids: Tensor, there: Tensor, features: Tensor) -> Tensor:
        """Outputs [n, OUTPUTS] on the CPU, wherever the network is."""
        place = self.head.out.weight.device
        vectors = self.backbone(ids.to(place), there.to(place))
        outputs: Tensor = self.head(torch.cat([vectors, features.to(place)], dim=1))
        return outputs.cpu()


def padded(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Ids [n, T] of rows of different lengths, padded behind with 0, and where a token is."""
    width = max(map(len, rows))
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    there = torch.zeros(len(rows), width, dtype=torch.bool)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = torch.tensor(row)
        there[at, : len(row)] = True
    return ids, there


def _pooled(states: Tensor, there: Tensor) -> Tensor:
    mean = (states * there[..., None]).sum(1) / there.sum(1, keepdim=True)
    most = states.masked_fill(~there[..., None], -torch.inf).amax(1)
    return torch.cat([mean, most], dim=1)
