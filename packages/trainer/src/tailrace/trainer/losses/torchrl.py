"""A loss of TorchRL (0.14: `GRPOLoss`, `DAPO`, or a class of yours that inherits one) as a loss of this trainer.

```python
from dataclasses import dataclass
from tailrace.trainer.losses.torchrl import TorchRlLoss

@dataclass(frozen=True, slots=True)
class TorchRlDapo(TorchRlLoss):
    clip_low: float = 0.2
    clip_high: float = 0.28

    def objective(self, actor):
        from torchrl.objectives.llm import DAPO

        return DAPO(actor, clip_epsilon=(self.clip_low, self.clip_high), aggregation="none", entropy_bonus=False)
```

Each response is a row, padded on the left, as TorchRL has it. Its `loss_objective` is taken, token by token; normalisation,
weights and the penalty for leaving a reference model are this trainer's. Importing this file loads no TorchRL.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from tailrace.contracts import extra
from tailrace.trainer.errors import TrainerConfigError
from tailrace.trainer.losses import Loss, LossTokens

if TYPE_CHECKING:
    from torch import Tensor


class TorchRlLoss(Loss):
    """A loss that one of TorchRL computes. What a subclass says of it is what `Loss` says."""

    __slots__ = ()

    @abstractmethod
    def objective(self, actor: Any) -> Any:
        """TorchRL's loss module of this actor, with ``aggregation="none"`` and ``entropy_bonus=False``."""

    def loss(self, tokens: LossTokens) -> Tensor:
        """See `Loss.loss`.

        Raises:
            TrainerConfigError: TorchRL's module does not give a loss for each token, or adds terms of its own.
        """
        with extra("tailrace-trainer", "torchrl"):
            from tensordict import TensorDict

        row, column, mask = _places(tokens.response)

        def padded(values: Tensor) -> Tensor:
            return values.new_zeros(mask.shape).index_put((row, column), values)

        batch = TensorDict(
            {
                "tokens": {"full": mask.long()},  # which ones they are is in the log-probabilities
                "log_probs": {"full": padded(tokens.behaviour)},
                "advantage": padded(tokens.advantages).unsqueeze(-1),
            },
            batch_size=[len(mask)],
        )
        module = self.objective(_Actor(padded(tokens.logprobs), mask)).to(mask.device)
        found = module(batch)
        own = [
            name
            for name in ("loss_entropy", "loss_kl_to_ref", "loss_kl_to_inference")
            if getattr(found, name) is not None
        ]
        shape = tuple(found.loss_objective.shape)
        if own or shape != (*mask.shape, 1):
            raise TrainerConfigError(
                f"{type(self).__name__}: found {', '.join(own) or 'loss_objective'} of TorchRL's {type(module).__name__}, "
                'expected a loss_objective for each token alone: aggregation="none", entropy_bonus=False, no kl coefficient'
            )
        objective: Tensor = found.loss_objective.squeeze(-1)[row, column]
        return objective


class _Actor:
    """What TorchRL asks of an actor: the distribution of the tokens, which are those of the batch."""

    def __init__(self, logprobs: Tensor, mask: Tensor) -> None:
        self._logprobs, self.mask = logprobs, mask

    def get_dist(self, *_: Any, **__: Any) -> _Actor:
        return self

    _get_sft_dist = _get_rlhf_dist = _get_generic_dist = get_dist

    def log_prob(self, action: Tensor) -> Tensor:  # noqa: ARG002
        return self._logprobs


def _places(response: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The row and column of each token, in order within its response, and which places of the rows are tokens."""
    import torch

    _, row, sizes = response.unique(return_inverse=True, return_counts=True)
    order = row.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    longest = int(sizes.max()) if len(sizes) else 0
    number = torch.empty_like(row)
    number[order] = torch.arange(len(row), device=row.device) - starts[row[order]]
    column = number + (longest - sizes)[row]
    mask = torch.zeros((len(sizes), longest), dtype=torch.bool, device=row.device)
    mask[row, column] = True
    return row, column, mask
