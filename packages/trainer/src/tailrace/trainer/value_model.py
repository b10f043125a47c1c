"""The critic's model: a transformer of the policy's architecture with a head that gives one number for each token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tailrace.trainer.microbatch import MicroBatch
from tailrace.trainer.policy_model import Policy, model_inputs, read_pretrained
from tailrace.trainer.sharded_load import empty_lm

_HUGGING_FACE = "AutoModelForSequenceClassification"


class ValueModel(Policy):
    """Computes the value of what stands before each response token.

    Args:
        lm: any ``AutoModelForSequenceClassification`` with one label, whose head is called ``score``.
    """

    def forward(self, batch: MicroBatch, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        """The values before the micro-batch's response tokens, ``[tokens]``, at least in float32; and nothing."""
        del temperature, entropy  # which the policy's have
        hidden = self.lm.base_model(**model_inputs(self.lm, batch))[0].flatten(0, 1)[batch.index]
        values = self.lm.score(hidden)[:, 0]
        # FSDP puts its backward hook on the output, which must not be a view.
        return values.to(torch.promote_types(values.dtype, torch.float32)).clone(), values.new_zeros(0)


def load_value_model(path: Path, dtype: torch.dtype, *, fresh: int | None) -> ValueModel:
    """Load the critic's model on the CPU and probe it.

    Args:
        path: a directory: of a model with a value head, or, for a fresh one, of a causal LM.
        dtype: dtype of the parameters.
        fresh: seed of a fresh head; None: the head that is there.

    Raises:
        ModelError: the directory holds no such model.
    """
    import transformers
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it would warn of a head that is not in the files, and of one that no plan of its own shards
    try:
        with torch.random.fork_rng(devices=[]):
            model = ValueModel(read_pretrained(getattr(transformers, _HUGGING_FACE), path, dtype, num_labels=1))
    finally:
        logging.set_verbosity(verbosity)
    if fresh is not None:
        model.lm.score.weight.data = fresh_head(model.lm.score.weight, fresh)
    model.probe()
    return model


def empty_value_lm(path: Path, dtype: torch.dtype) -> Any:
    """What `ValueModel` takes, without memory; see `empty_lm`."""
    return empty_lm(path, dtype, _HUGGING_FACE, num_labels=1)


def fresh_head(like: Tensor, seed: int) -> Tensor:
    """A fresh head's weight, ``[1, hidden]``: normal with standard deviation ``1 / (hidden + 1)``, so that values begin near 0.
    The same numbers for a seed, on every rank.

    Args:
        like: has the shape and the dtype.
        seed: the seed.
    """
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=draw).div_(like.shape[-1] + 1).to(like.dtype)
