"""Networks that read a prompt and put out its place in the order and quantiles of its lengths, as a loss and as predictions.

In the loss truncated samples are censored ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from tailrace.ranker.errors import DamagedRankerError
from tailrace.ranker.learned.samples import Samples, Scale, known_longer
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.saved import file_of

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


def pairwise(scores: Tensor, samples: Samples) -> Tensor:
    """Logistic loss over pairs of prompts (RankNet, Burges et al. 2005), each pair of samples counted by its difference.

    With E[(L_i - L_j)+] against E[(L_j - L_i)+] tokens, from all pairs of their samples whose order is known, the loss is
    least where s_i > s_j exactly if i is longer on average: the first less the second is the difference of the means.
    Counted by one each, pairs would teach which prompt is usually longer, and a prompt that is seldom but much longer would
    be none of the longest.

    Args:
        scores: [n].
        samples: of the n prompts.

    Returns:
        A scalar; 0 if no order is known.
    """
    longer = known_longer(samples.logs, samples.cut, samples.there, samples)  # [n, S, n, S]
    tokens = samples.logs.exp()
    by = (tokens[:, :, None, None] - tokens[None, None]) * longer
    most = samples.there.sum(1).float()
    wins = by.sum(dim=(1, 3)) / (most[:, None] * most[None, :])  # a prompt with more samples does not count more
    weight = (wins + wins.T).triu(1)
    if not weight.any():
        return scores.sum() * 0.0
    target = wins / (wins + wins.T).where(wins + wins.T > 0, torch.ones(()))
    loss = F.binary_cross_entropy_with_logits(scores[:, None] - scores[None, :], target, reduction="none")
    return (loss * weight).sum() / weight.sum()


def list_mle(scores: Tensor, samples: Samples, drawn: torch.Generator) -> Tensor:
    """Negative log-likelihood of the order of one sample of each prompt (ListMLE, Xia et al. 2008; Plackett-Luce).

    Where truncation hides the order, a sample competes only with those known to be shorter: Cox's partial likelihood, with time
    running backwards. Without truncation and ties that is ListMLE.

    Args:
        scores: [n].
        samples: of the n prompts.
        drawn: draws the samples.

    Returns:
        A scalar, the mean over prompts that are known to be longer than another; 0 if there is none.
    """
    chosen = torch.multinomial(samples.there.float(), 1, generator=drawn)
    one = Samples(*(part.gather(1, chosen) for part in (samples.logs, samples.cut, samples.there)))
    shorter = known_longer(one.logs[:, 0], one.cut[:, 0], one.there[:, 0], one)[..., 0]  # [n, n]
    competes = shorter | torch.eye(len(scores), dtype=torch.bool)
    terms = torch.logsumexp(scores[None, :].masked_fill(~competes, -torch.inf), dim=1) - scores
    told = shorter.any(1)
    return terms[told].mean() if told.any() else scores.sum() * 0.0


def pinball(logs: Tensor, samples: Samples, share: float) -> Tensor:
    """Quantile loss of ln tokens; a truncated sample only says where its length is not (Powell, J. Econometrics 32, 1986).

    Args:
        logs: [n], predicted quantiles.
        samples: of the n prompts.
        share: the quantile's.

    Returns:
        A scalar, the mean over prompts.
    """
    error = samples.logs - logs[:, None]
    loss = torch.maximum(share * error, (share - 1) * error)
    counts = samples.there & ~(samples.cut & (error < 0))
    return ((loss * counts).sum(1) / samples.there.sum(1)).mean()


Loss = Literal["quantiles", "pairwise", "listmle"]


def quantile_logs(outputs: Tensor, scale: Scale) -> Tensor:
    """ln of the quantiles [n, shares] of outputs [n, 1 + shares]; none is below the one before."""
    above = F.pad(F.softplus(outputs[:, 2:]).cumsum(1), (1, 0))
    return scale.middle + scale.spread * (outputs[:, 1:2] + above - above[:, P50 : P50 + 1])


def ranking_loss(outputs: Tensor, samples: Samples, scale: Scale, loss: Loss, drawn: torch.Generator) -> Tensor:
    """The loss of the order, and those of all quantiles in units of the spread.

    The first, which ``"quantiles"`` does without, shapes what the layers before look for. The order itself is read from the
    quantiles: they are in tokens, and found more of the longest prompts.
    """
    logs = quantile_logs(outputs, scale)
    total = outputs.sum() * 0.0
    if loss == "pairwise":
        total = pairwise(outputs[:, 0], samples)
    elif loss == "listmle":
        total = list_mle(outputs[:, 0], samples, drawn)
    for at, share in enumerate(SHARES):
        total = total + pinball(logs[:, at], samples, share) / scale.spread
    return total


def predictions_of(outputs: Tensor, scale: Scale) -> list[Prediction]:
    """One prediction for each row; between 1 token and the longest sample that was seen."""
    return predictions_by(quantile_logs(outputs, scale).double().exp(), scale.most)


def predictions_by(lengths: Tensor, most: float) -> list[Prediction]:
    """The predictions of quantiles [n, shares] in tokens, which may have the rounding of float32.

    Args:
        lengths: the quantiles.
        most: tokens that none exceeds.
    """
    rows = lengths.double().clamp(1.0, most).tolist()
    return [Prediction(row[P50], max(row[P50], row[P90]), sum(row) / len(row)) for row in rows]


def saved_weights(network: nn.Module) -> bytes:
    """A network's weights as safetensors, without those that are frozen."""
    frozen = _frozen(network)
    weights = {
        name: tensor.detach().cpu().clone().contiguous()
        for name, tensor in network.state_dict().items()
        if name not in frozen
    }
    content: bytes = save_tensors(weights)
    return content


def load_weights(network: nn.Module, files: Mapping[str, bytes], name: str) -> None:
    """Give a network saved weights, and set it to evaluation.

    Raises:
        DamagedRankerError: they are not those of this network.
    """
    try:
        weights: dict[str, Any] = load_tensors(file_of(files, name))
        missing, _ = network.load_state_dict(weights, strict=not (frozen := _frozen(network)))
        if set(missing) != frozen or not set(weights) <= set(network.state_dict()):
            raise RuntimeError(f"{len(set(missing) ^ frozen)} tensors are missing or too many")
    except (SafetensorError, RuntimeError) as error:
        said = str(error).splitlines()[0]
        raise DamagedRankerError(f"{name}: found other weights than these ({said}), expected what was saved") from error
    network.eval()


def _frozen(network: nn.Module) -> set[str]:
    """Names of what does not learn, in all places where it stands."""
    return {name for name, weight in network.named_parameters(remove_duplicate=False) if not weight.requires_grad}
