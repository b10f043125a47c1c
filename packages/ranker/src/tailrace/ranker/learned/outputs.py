"""What a network puts out, as a loss and as predictions."""

from __future__ import annotations

import math
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
from tailrace.ranker.learned.samples import Samples, Scale
from tailrace.ranker.prediction import Prediction

Loss = Literal["pairwise", "listmle"]


def quantile_logs(outputs: Tensor, scale: Scale) -> tuple[Tensor, Tensor]:
    """ln p50 and ln p90 of outputs [n, 3]; the second is never the lower."""
    p50 = scale.middle + scale.spread * outputs[:, 1]
    return p50, p50 + scale.spread * F.softplus(outputs[:, 2])


def ranking_loss(outputs: Tensor, samples: Samples, scale: Scale, loss: Loss, drawn: torch.Generator) -> Tensor:
    """The loss of the order, and those of both quantiles in units of the spread."""
    order = pairwise(outputs[:, 0], samples) if loss == "pairwise" else list_mle(outputs[:, 0], samples, drawn)
    p50, p90 = quantile_logs(outputs, scale)
    total: Tensor = order + (pinball(p50, samples, 0.5) + pinball(p90, samples, 0.9)) / scale.spread
    return total


def predictions_of(outputs: Tensor, scale: Scale) -> list[Prediction]:
    """One prediction for each row; between 1 token and the longest sample that was seen."""
    most = math.log(scale.most)
    p50, p90 = (logs.clamp(0.0, most).double().exp() for logs in quantile_logs(outputs, scale))
    rows = zip(p50.tolist(), p90.tolist(), outputs[:, 0].double().tolist(), strict=True)
    return [Prediction(max(1.0, half), max(1.0, half, most_of), score) for half, most_of, score in rows]


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
