"""The trainer's settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tailrace.trainer.errors import TrainerConfigError

Normalisation = Literal["token", "sequence"]


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """Settings of GRPO and its optimizer (AdamW).

    Args:
        lr: learning rate after the warm-up.
        betas: AdamW's betas.
        weight_decay: AdamW's decoupled weight decay.
        warmup_steps: optimizer steps over which the rate rises linearly to `lr`.
        clip_low: the importance ratio is clipped below at ``1 - clip_low``.
        clip_high: the importance ratio is clipped above at ``1 + clip_high`` (clip-higher, DAPO section 3.1).
        normalisation: ``"token"`` weighs all response tokens of a mini-batch equally (DAPO equation 12);
            ``"sequence"`` weighs all responses equally, whatever their length (GRPO equation 3).
        divide_by_std: divide advantages by the standard deviation of the group's rewards (GRPO); False only centres them.
        temperature: sampling temperature of the rollout. Log-probabilities include it, as those that the engine recorded do.
        grad_clip_norm: largest 2-norm of the gradient, which is clipped to it; 0 does not clip.
        micro_batch_tokens: most tokens of one forward pass, including padding. A longer trajectory has its own pass.
        shared_prompt_tokens: responses to one prompt share one copy of it in rows of at most this many tokens;
            0 gives every response its own row.
        entropy: whether to report the policy's entropy too.
        dtype: dtype of the forward and backward passes; parameters and optimizer state are always float32.
        device: the device; ``"auto"`` takes CUDA if available.
        threads: CPU threads of torch; 0 leaves torch's setting.
        seed: seed of torch's generators (dropout).
        timeout_s: deadline of every collective operation and of a checkpoint.

    Raises:
        TrainerConfigError: a value is outside its range.
    """

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup_steps: int = 0
    clip_low: float = 0.2
    clip_high: float = 0.28
    normalisation: Normalisation = "token"
    divide_by_std: bool = True
    temperature: float = 1.0
    grad_clip_norm: float = 1.0
    micro_batch_tokens: int = 2048
    shared_prompt_tokens: int = 384
    entropy: bool = True
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 0
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name, low in (
            ("lr", 0.0),
            ("weight_decay", 0.0),
            ("warmup_steps", 0),
            ("clip_high", 0.0),
            ("grad_clip_norm", 0.0),
            ("shared_prompt_tokens", 0),
            ("threads", 0),
        ):
            if not getattr(self, name) >= low:
                raise TrainerConfigError(f"found {name} = {getattr(self, name)!r}, expected at least {low}")
        for name in ("temperature", "micro_batch_tokens", "timeout_s"):
            if not getattr(self, name) > 0:
                raise TrainerConfigError(f"found {name} = {getattr(self, name)!r}, expected more than 0")
        if not 0 <= self.clip_low < 1:
            raise TrainerConfigError(f"found clip_low = {self.clip_low!r}, expected 0 <= clip_low < 1")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise TrainerConfigError(f"found betas = {self.betas!r}, expected two numbers in [0, 1)")
        for name, known in (
            ("normalisation", ("token", "sequence")),
            ("dtype", ("float32", "bfloat16")),
            ("device", ("auto", "cpu", "cuda")),
        ):
            if getattr(self, name) not in known:
                raise TrainerConfigError(f"found {name} = {getattr(self, name)!r}, expected one of {', '.join(known)}")
