"""What a network puts out, as a loss and as predictions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from tailrace.ranker.contents import file_of
from tailrace.ranker.errors import DamagedRankerError
from tailrace.ranker.learned.losses import list_mle, pairwise, pinball
from tailrace.ranker.learned.network import P50, P90, SHARES
from tailrace.ranker.learned.samples import Samples, Scale
from tailrace.ranker.prediction import Prediction

Loss = Literal["pairwise", "listmle"]


def quantile_logs(outputs: Tensor, scale: Scale) -> Tensor:
    """ln of the quantiles [n, shares] of outputs [n, 1 + shares]; none is below the one before."""
    above = F.pad(F.softplus(outputs[:, 2:]).cumsum(1), (1, 0))
    return scale.middle + scale.spread * (outputs[:, 1:2] + above - above[:, P50 : P50 + 1])


def ranking_loss(outputs: Tensor, samples: Samples, scale: Scale, loss: Loss, drawn: torch.Generator) -> Tensor:
    """The loss of the order, and those of all quantiles in units of the spread.

    The first shapes what the layers before look for. The order itself is read from the quantiles: they are in tokens, and found
    more of the longest prompts.
    """
    order = pairwise(outputs[:, 0], samples) if loss == "pairwise" else list_mle(outputs[:, 0], samples, drawn)
    logs = quantile_logs(outputs, scale)
    total = order
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
    """A network's weights as safetensors."""
    weights = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in network.state_dict().items()}
    content: bytes = save_tensors(weights)
    return content


def load_weights(network: nn.Module, files: Mapping[str, bytes], name: str) -> None:
    """Give a network saved weights, and set it to evaluation.

    Raises:
        DamagedRankerError: they are not those of this network.
    """
    try:
        weights: dict[str, Any] = load_tensors(file_of(files, name))
        network.load_state_dict(weights)
    except (SafetensorError, RuntimeError) as error:
        said = str(error).splitlines()[0]
        raise DamagedRankerError(f"{name}: found other weights than these ({said}), expected what was saved") from error
    network.eval()
