"""A Hugging Face causal LM as the policy: it computes log-probabilities of response tokens.

The logits of a large vocabulary are not kept: they are made chunk by chunk from hidden states.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tailrace.trainer.adapters import is_adapter
from tailrace.trainer.config import SMALL_MODEL_PARAMETERS, TrainerConfig
from tailrace.trainer.errors import ModelError, TrainerConfigError
from tailrace.trainer.layout import PackedRow, TrainingSample
from tailrace.trainer.memory import LOGITS_ON_CPU, LOGITS_ON_GPU
from tailrace.trainer.microbatch import MicroBatch, to_tensors
from tailrace.trainer.varlen_attention import ARGUMENT, stop_using_in, use_in
from tailrace.trainer.weights_file import has_weights_file


class _TokenLogprobs(torch.autograd.Function):
    """Log-probabilities by chunks of logits. The backward pass recomputes each chunk; a single chunk is kept.

    With rows of `weight` on several ranks, each has a softmax over its own; what joins them is one number for each token.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        entropy: bool,
        group: Any,
        first: int,
        budget: int,
    ) -> tuple[Tensor, Tensor]:
        tokens, rows = len(targets), weight.shape[0]
        chunk = max(1, budget // max(1, rows))
        normaliser = torch.empty(tokens, dtype=_wide(hidden), device=hidden.device)
        picked = torch.empty_like(normaliser)
        mean = torch.zeros(tokens if entropy else 0, dtype=_wide(hidden), device=hidden.device)
        kept: Tensor | None = None
        own = targets if group is None else (targets - first).clamp(0, max(0, rows - 1))
        for start in range(0, tokens, chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden[part], weight, temperature)
            normaliser[part] = logits.logsumexp(-1)
            picked[part] = logits.gather(1, own[part, None])[:, 0] if rows else 0.0
            probabilities = (logits - normaliser[part, None]).exp_() if entropy or tokens <= chunk else None
            if entropy and probabilities is not None:
                mean[part] = (probabilities * logits).sum(-1)
            if tokens <= chunk:
                kept = probabilities
        held: Tensor | None = None
        if group is not None:
            held = (targets >= first) & (targets < first + rows)
            mine, normaliser = normaliser, _join(normaliser, picked, mean, held, group)
            if kept is not None:
                kept *= (mine - normaliser)[:, None].exp()
        logprobs = picked - normaliser
        spread = normaliser - mean if entropy else mean
        ctx.save_for_backward(hidden, weight, own, normaliser, kept, held)
        ctx.chunk, ctx.temperature = chunk, temperature
        ctx.mark_non_differentiable(spread)
        return logprobs, spread

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        grad = grads[0]
        hidden, weight, own, normaliser, kept, held = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        trained = ctx.needs_input_grad[1]  # not beside an adapter
        grad_weight = torch.zeros(weight.shape if trained else 0, dtype=_wide(weight), device=weight.device)
        for start in range(0, len(own), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            if kept is None:
                logits = _logits(hidden[part], weight, ctx.temperature)
                probabilities = (logits - normaliser[part, None]).exp_()
            else:
                probabilities = kept
            # d logprob[t] / d logits = onehot(t) - softmax, over the temperature.
            scale = grad[part, None] / ctx.temperature
            slope = probabilities * -scale
            if len(weight):
                slope = slope.scatter_add_(1, own[part, None], scale if held is None else scale * held[part, None])
            slope = slope.to(hidden.dtype)
            grad_hidden[part] = slope @ weight
            if trained:
                grad_weight += slope.T @ hidden[part]
        return grad_hidden, grad_weight.to(weight.dtype) if trained else None, None, None, None, None, None, None


def _join(normaliser: Tensor, picked: Tensor, mean: Tensor, held: Tensor, group: Any) -> Tensor:
    """The normaliser over the vocabulary of all ranks; `picked` and `mean` become those of it. Collective."""
    most = normaliser.clone()
    dist.all_reduce(most, op=dist.ReduceOp.MAX, group=group)
    share = (normaliser - most).exp()
    sums = torch.stack([share, picked.where(held, 0.0), *([mean * share] if len(mean) else [])])
    dist.all_reduce(sums, group=group)
    picked.copy_(sums[1])
    if len(mean):
        mean.copy_(sums[2] / sums[0])
    return most + sums[0].log()


def _logits(hidden: Tensor, weight: Tensor, temperature: float) -> Tensor:
    logits = (hidden @ weight.T).to(_wide(hidden))
    return logits if temperature == 1.0 else logits / temperature


def _wide(tensor: Tensor) -> torch.dtype:
    """The tensor's dtype, but at least float32."""
    return torch.promote_types(tensor.dtype, torch.float32)


def token_logprobs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    entropy: bool = False,
    group: Any = None,
    first: int = 0,
    logits_budget: int = 0,
) -> tuple[Tensor, Tensor]:
    """``log softmax(hidden @ weight.T / temperature)[targets]``, in bounded memory.

    Args:
        hidden: hidden states, ``[tokens, width]``.
        weight: weight of the output layer, ``[vocabulary, width]``.
        targets: token ids, ``[tokens]``.
        temperature: temperature of the softmax.
        entropy: whether to return the entropy of each softmax too.
        group: process group over which the vocabulary is split; collective in it then, and the gradient of `hidden` is this
            rank's part of a sum. None: `weight` has all rows.
        first: the token id of this rank's first row.
        logits_budget: most logits that exist at one time, but those of one token at least; 0: 2^24 on a CPU, else 2^28.

    Returns:
        Log-probabilities ``[tokens]``, at least in float32, differentiable in `hidden` and `weight`; entropies ``[tokens]`` in
        nats, not differentiable, empty without `entropy`.
    """
    budget = logits_budget or (LOGITS_ON_CPU if hidden.device.type == "cpu" else LOGITS_ON_GPU)
    logprobs, spread = _TokenLogprobs.apply(hidden, weight, targets, temperature, entropy, group, first, budget)
    return logprobs, spread


logger = logging.getLogger(__name__)
PREFIX = "lm."
"""The prefix that this module adds to Hugging Face's parameter names."""
_LEAST_TOLERANCE, _MOST_TOLERANCE = 1e-4, 1e-2  # nats
_NOISES = 8  # a shortcut may differ by so many times the difference between rows computed together and one by one


class Policy(nn.Module):
    """Computes log-probabilities of response tokens.

    It takes three shortcuts if a probe shows that the model allows them. The output layer is applied only to response
    positions, chunk by chunk (not if the model scales or caps its logits). Responses share their prompt's row (not if the
    model ignores a 4-dimensional mask or attends within a window). Rows follow each other without padding (not if its attention
    is another one than torch's, or something else looks back over the row).

    Args:
        lm: any ``AutoModelForCausalLM``.
    """

    def __init__(self, lm: Any) -> None:
        super().__init__()
        self.lm = lm
        self.direct_head = False
        self.shares_prompts = False
        self.packs = False
        self.logits_budget = 0

    def configure(self, config: TrainerConfig) -> None:
        """Take the settings of activations and logits. Call it before the model is sharded.

        Raises:
            TrainerConfigError: activations are to be computed again, which the model does not offer.
        """
        self.logits_budget = config.logits_budget
        self.packs = self.packs and config.packing
        if not self.packs:
            stop_using_in(self.lm)
        asked, offered = config.activation_checkpointing, bool(self.lm.supports_gradient_checkpointing)
        if asked == "on" and not offered:
            raise TrainerConfigError(
                f"found activation_checkpointing = 'on' with {type(self.lm).__name__}, which does not offer it; expected "
                "'auto' or 'off'"
            )
        large = sum(parameter.numel() for parameter in self.parameters()) > SMALL_MODEL_PARAMETERS
        if asked == "on" or (asked == "auto" and large and offered):
            self.lm.gradient_checkpointing_enable({"use_reentrant": False})

    def freeze(self, dtype: torch.dtype) -> None:
        """Train none of its parameters from now on, and keep them in this dtype."""
        for parameter in self.parameters():
            parameter.requires_grad_(False)
            parameter.data = parameter.data.to(dtype)

    @property
    def vocabulary(self) -> int:
        """How many token ids the model knows."""
        return int(self.lm.get_input_embeddings().weight.shape[0])

    def forward(self, batch: MicroBatch, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of the micro-batch's response tokens; see `token_logprobs` for their shapes."""
        if self.direct_head:
            hidden = self.lm.base_model(**model_inputs(self.lm, batch))[0].flatten(0, 1)[batch.index]
            weight = self.lm.get_output_embeddings().weight
            return token_logprobs(
                hidden,
                weight,
                batch.targets,
                temperature=temperature,
                entropy=entropy,
                logits_budget=self.logits_budget,
            )
        logits = self.lm(**model_inputs(self.lm, batch)).logits.flatten(0, 1)[batch.index]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        table = logits.log_softmax(-1)
        spread = -(table.exp() * table).sum(-1).detach() if entropy else table.new_zeros(0)
        # FSDP puts its backward hook on the output, which must not be a view.
        return table.gather(1, batch.targets[:, None])[:, 0].clone(), spread

    def probe(self) -> None:
        """Find out which shortcuts give the same log-probabilities as the model's own forward pass.

        The same up to rounding, which is measured: kernels of other shapes add up in another order, and a deep model makes
        more of that than a shallow one.
        """
        training = self.lm.training
        self.lm.eval()
        vocabulary = self.vocabulary
        draw = random.Random(0)
        device = self.lm.get_input_embeddings().weight.device
        prompt = tuple(draw.randrange(vocabulary) for _ in range(5))
        samples = [TrainingSample(prompt, tuple(draw.randrange(vocabulary) for _ in range(n)), 1.0) for n in (3, 2, 4)]
        dtype = self.lm.get_input_embeddings().weight.dtype
        alone = to_tensors([PackedRow(prompt, (sample,)) for sample in samples], device, dtype)
        together = to_tensors([PackedRow(prompt, tuple(samples))], device, dtype)
        with torch.no_grad():
            truth, _ = self(alone, 1.0, False)
            rows = [to_tensors([PackedRow(prompt, (sample,))], device, dtype) for sample in samples]
            noise = (torch.cat([self(row, 1.0, False)[0] for row in rows]) - truth).abs().max().item()
            tolerance = min(_MOST_TOLERANCE, max(_LEAST_TOLERANCE, _NOISES * noise))
            head = self.lm.get_output_embeddings()
            if isinstance(head, nn.Linear) and head.bias is None:
                self.direct_head = True
                self.direct_head = self._agrees(alone, truth, tolerance)
            plain = not _windowed(self.lm.config)
            self.shares_prompts = plain and self._agrees(together, truth, tolerance)
            parts = [PackedRow(prompt, tuple(samples[:2])), PackedRow(prompt, tuple(samples[2:]))]
            if not self.shares_prompts:
                parts = [PackedRow(prompt, (sample,)) for sample in samples]
            self.packs = plain and self._agrees(to_tensors(parts, device, dtype, packed=True), truth, tolerance)
            if not self.packs:
                stop_using_in(self.lm)
        self.lm.train(training)

    def take(self, *, direct_head: bool, shares_prompts: bool, packs: bool) -> None:
        """Take the shortcuts that another model of the same form was found to allow."""
        self.direct_head, self.shares_prompts, self.packs = direct_head, shares_prompts, packs and use_in(self.lm)

    def _agrees(self, batch: MicroBatch, truth: Tensor, tolerance: float) -> bool:
        try:
            found, _ = self(batch, 1.0, False)
        except (ModelError, TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
            # A model that rejects the inputs of a shortcut goes without it, which is slower but as correct.
            logger.info("%s does not take a shortcut: %s", type(self.lm).__name__, error)
            return False
        differs = float((found - truth).abs().max())
        if not differs < tolerance:
            logger.info("%s: a shortcut differs by %.2g, more than %.2g", type(self.lm).__name__, differs, tolerance)
        return differs < tolerance


def model_inputs(lm: Any, batch: MicroBatch) -> dict[str, Any]:
    """What a Hugging Face model takes for a micro-batch.

    Raises:
        ModelError: it is a packed one, and the model's attention is not torch's.
    """
    inputs: dict[str, Any] = {"input_ids": batch.input_ids, "use_cache": False}
    if batch.sequences is not None:
        if not use_in(lm):
            raise ModelError(f"found {type(lm).__name__} with attention of its own, expected torch's, in a packed row")
        inputs |= {ARGUMENT: batch.sequences, "position_ids": batch.position_ids}
    elif batch.mask is not None:
        inputs |= {"attention_mask": batch.mask, "position_ids": batch.position_ids}
    return inputs


def _windowed(config: Any) -> bool:
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    return getattr(config, "sliding_window", None) is not None


def load_policy(path: str | Path, dtype: torch.dtype = torch.float32) -> Policy:
    """Load a model directory on the CPU and probe it.

    Args:
        path: the directory.
        dtype: dtype of the parameters.

    Raises:
        ModelError: the directory holds no causal LM, or its weights as pickled files (``.bin``).
    """
    from transformers import AutoModelForCausalLM

    policy = Policy(read_pretrained(AutoModelForCausalLM, Path(path), dtype))
    policy.probe()
    return policy


def read_pretrained(kind: Any, path: Path, dtype: torch.dtype, **options: Any) -> Any:
    """A model of a directory as Hugging Face loads it, without a bar on the terminal.

    Args:
        kind: one of Hugging Face's ``AutoModel...``.
        path: the directory.
        dtype: dtype of the parameters.
        options: what it takes beside them.

    Raises:
        ModelError: the directory holds no such model.
    """
    from transformers.utils import logging as logging_settings

    if not (path / "config.json").is_file():
        raise ModelError(f"found no config.json in {path}, expected the directory of a Hugging Face causal LM")
    if is_adapter(path):
        raise ModelError(f"found an adapter in {path}, expected a whole model; tailrace export --merge writes one")
    if not has_weights_file(path) and (pickled := sorted(Path(path).glob("*.bin"))):
        raise ModelError(
            f"found {pickled[0].name} in {path}, expected safetensors, of which each rank reads its rows; to convert: "
            f"python -c \"from transformers import AutoModelForCausalLM as Lm; Lm.from_pretrained('{path}').save_pretrained"
            "('OUT')\", and the tokenizer's files beside it"
        )
    bars = logging_settings.is_progress_bar_enabled()
    logging_settings.disable_progress_bar()
    try:
        return kind.from_pretrained(str(path), dtype=dtype, local_files_only=True, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{path} does not load as a causal LM: {error}") from error
    finally:
        if bars:
            logging_settings.enable_progress_bar()
