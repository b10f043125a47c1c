"""The trainer's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from tailrace.contracts import PluginError
from tailrace.trainer.advantages import Advantages, CriticAdvantages, open_advantages
from tailrace.trainer.errors import TrainerConfigError
from tailrace.trainer.losses import Loss, Normalisation, open_loss

ALL_LINEAR = "all-linear"
SMALL_MODEL_PARAMETERS = 50_000_000
"""Up to this size a model is one FSDP unit and keeps its activations: gathering or computing them again layer by layer would
cost more than it saves."""
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """A LoRA adapter (arXiv:2106.09685), which is trained in place of the model's own weights.

    Args:
        rank: rank of its matrices; 0: no adapter.
        alpha: what they add is scaled by ``alpha / rank``.
        targets: names of the linear layers that get one, such as ``q_proj``; ``"all-linear"``: all but the output layer.

    Raises:
        TrainerConfigError: a value is outside its range.
    """

    rank: int = 0
    alpha: float = 16.0
    targets: str | tuple[str, ...] = ALL_LINEAR

    def __post_init__(self) -> None:
        if self.rank < 0:
            raise TrainerConfigError(f"found adapter rank = {self.rank}, expected at least 1, or 0 for none")
        if not self.alpha > 0:
            raise TrainerConfigError(f"found adapter alpha = {self.alpha!r}, expected more than 0")
        named = isinstance(self.targets, tuple) and len(self.targets) > 0
        if self.targets != ALL_LINEAR and not named:
            raise TrainerConfigError(
                f"found adapter targets = {self.targets!r}, expected {ALL_LINEAR!r} or a list of names of layers"
            )


@dataclass(frozen=True, slots=True)
class CriticConfig:
    """The critic, whose values make the advantages of tokens: a model of the policy's architecture with a head of one number.

    Args:
        init: directory of a model of the policy's type, vocabulary and tokenizer with such a head (``score.weight``, as
            Hugging Face's sequence classifiers with one label have, reward models among them); None: the policy's model with
            a fresh head.
        lr: learning rate; None: the policy's `lr`. Its other options are the policy's, without a schedule.
        value_clip: how far a value moves from what it was before the batch until its loss is clipped; 0 does not clip.
        epochs: passes over each batch.
        warmup_steps: optimizer steps of the critic before the policy begins to move; until then batches train the critic
            alone.
        grad_clip_norm: largest 2-norm of its gradient, which is clipped to it; 0 does not clip.

    Raises:
        TrainerConfigError: a value is outside its range.
    """

    init: Path | None = None
    lr: float | None = None
    value_clip: float = 0.2
    epochs: int = 1
    warmup_steps: int = 0
    grad_clip_norm: float = 1.0

    def __post_init__(self) -> None:
        for name, low in (("value_clip", 0.0), ("epochs", 1), ("warmup_steps", 0), ("grad_clip_norm", 0.0)):
            if not getattr(self, name) >= low:
                raise TrainerConfigError(f"found critic {name} = {getattr(self, name)!r}, expected at least {low}")
        if self.lr is not None and not self.lr >= 0:
            raise TrainerConfigError(f"found critic lr = {self.lr!r}, expected at least 0")


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """Settings of the loss, its gradients and the optimizer (AdamW).

    Args:
        lr: learning rate after the warm-up.
        betas: AdamW's betas.
        weight_decay: AdamW's decoupled weight decay.
        warmup_steps: optimizer steps over which the rate rises linearly to `lr`.
        lr_schedule: what the rate does after the warm-up: ``"constant"`` stays at `lr`; ``"linear"`` and ``"cosine"`` fall to
            `lr_min` over `lr_decay_steps`; ``"warmup-stable-decay"`` stays at `lr` for `lr_stable_steps`, then falls as a
            cosine.
        lr_stable_steps: optimizer steps at `lr` between warm-up and decay, of ``"warmup-stable-decay"``.
        lr_decay_steps: optimizer steps over which the rate falls.
        lr_min: learning rate after the decay.
        loss: the loss, a plugin of ``tailrace.loss``.
        loss_options: its options by name.
        advantages: how rewards become advantages, a plugin of ``tailrace.advantages``; ``"auto"``: as the loss's paper has it.
        advantages_options: their options by name.
        normalisation: ``"token"`` weighs all response tokens of a mini-batch equally (DAPO equation 12);
            ``"sequence"`` weighs all responses equally, whatever their length (GRPO equation 3); ``"constant"`` divides the sum
            over a response's tokens by `max_response_tokens` (Dr. GRPO); ``"auto"``: as the loss's paper has it. Lengths are of
            generated tokens, without what environments answered.
        max_response_tokens: most tokens of a response, which ``"constant"`` and `overlong_buffer` need; 0 if they are not
            used. In a run it is `rollout.max_tokens`.
        overlong_buffer: last tokens of the longest response allowed, over which the reward falls by up to 1 (soft overlong
            punishment, DAPO equation 13); 0 for none.
        mask_overlong: whether responses that ended at the limit of tokens have no weight in the loss (overlong filtering, DAPO
            section 3.4). Their rewards still count in the advantages of their group.
        kl_coefficient: weight of a penalty for leaving the model that training began with (GRPO equation 3); above 0 a frozen
            copy of that model is kept.
        temperature: sampling temperature of the rollout. Log-probabilities include it, as those that the engine recorded do.
        grad_clip_norm: largest 2-norm of the gradient, which is clipped to it; 0 does not clip.
        micro_batch_tokens: most tokens of one forward pass, including padding. A longer trajectory has its own pass.
        packing: whether the responses of a micro-batch follow each other in one row without padding, each attending to its
            own alone. A model whose attention cannot is padded, as a line at the start says.
        shared_prompt_tokens: responses to one prompt share one copy of it in rows of at most this many tokens;
            0 gives every response its own row.
        entropy: whether to report the policy's entropy too.
        activation_checkpointing: whether layers keep only their inputs for the backward pass and compute the rest again, which
            takes about a third more time and a tenth of the memory; ``"auto"``: for models above 50 million parameters.
        compile: whether `torch.compile` compiles the layers' passes, with FSDP2. It is tried at the start: where torch cannot,
            or a probe finds that they then compute something else, layers stay as they are, as a line says.
        logits_budget: most logits that exist at one time while log-probabilities are computed; 0: 2^24 on a CPU, 2^28 on a GPU
            (1 GiB in float32).
        offload: what is in pinned host memory between optimizer steps: ``["optimizer"]``, or nothing; with FSDP2. On a CPU
            nothing is moved.
        dtype: dtype of the forward and backward passes. Parameters, which are master copies with ``"bfloat16"``, sums of
            gradients and optimizer state are float32; with ``"float64"``, which is there to measure rounding, everything is.
        device: the device; ``"auto"`` takes CUDA if available.
        threads: CPU threads of torch; 0 or None leaves torch's setting.
        adapter: the LoRA adapter that is trained instead of the weights; of rank 0, there is none.
        critic: the critic, of advantages that need one. It is trained whole, beside an adapter too.
        cells: groups of ranks that can each compute gradients without the others. The model is sharded within a cell and
            replicated over cells. The number of ranks is a multiple of it.
        tensor_parallel: ranks that follow each other and split every layer between them, with the backend megatron; it divides
            the model's heads, and the ranks of a cell.
        zero_stage: what DeepSpeed's ZeRO leaves each rank a part of, of backend `deepspeed`: 1 optimizer state, 2 gradients
            too, 3 parameters too; None: 2.
        seed: seed of torch's generators (dropout).
        timeout_s: deadline of every collective operation and of a checkpoint.

    Raises:
        TrainerConfigError: a value is outside its range.
    """

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    warmup_steps: int = 0
    lr_schedule: Literal["constant", "linear", "cosine", "warmup-stable-decay"] = "constant"
    lr_stable_steps: int = 0
    lr_decay_steps: int = 0
    lr_min: float = 0.0
    loss: str = "dapo"
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    advantages: str = AUTO
    advantages_options: Mapping[str, Any] = field(default_factory=dict)
    normalisation: Literal["auto", "token", "sequence", "constant"] = "auto"
    max_response_tokens: int = 0
    overlong_buffer: int = 0
    mask_overlong: bool = False
    kl_coefficient: float = 0.0
    temperature: float = 1.0
    grad_clip_norm: float = 1.0
    micro_batch_tokens: int = 2048
    packing: bool = True
    shared_prompt_tokens: int = 384
    entropy: bool = True
    activation_checkpointing: Literal["auto", "on", "off"] = "auto"
    compile: bool = False
    logits_budget: int = 0
    offload: tuple[Literal["optimizer"], ...] = ()
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: int | None = 0
    adapter: AdapterConfig = AdapterConfig()
    critic: CriticConfig = CriticConfig()
    cells: int = 1
    tensor_parallel: int = 1
    zero_stage: Literal[1, 2, 3] | None = None
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        for name, low in (
            ("lr", 0.0),
            ("weight_decay", 0.0),
            ("warmup_steps", 0),
            ("lr_stable_steps", 0),
            ("lr_decay_steps", 0),
            ("lr_min", 0.0),
            ("logits_budget", 0),
            ("max_response_tokens", 0),
            ("overlong_buffer", 0),
            ("kl_coefficient", 0.0),
            ("grad_clip_norm", 0.0),
            ("shared_prompt_tokens", 0),
            ("threads", 0),
            ("cells", 1),
            ("tensor_parallel", 1),
        ):
            if name == "threads" and self.threads is None:
                continue  # as an engine's option has it
            if not getattr(self, name) >= low:
                raise TrainerConfigError(f"found {name} = {getattr(self, name)!r}, expected at least {low}")
        for name in ("temperature", "micro_batch_tokens", "timeout_s"):
            if not getattr(self, name) > 0:
                raise TrainerConfigError(f"found {name} = {getattr(self, name)!r}, expected more than 0")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise TrainerConfigError(f"found betas = {self.betas!r}, expected two numbers in [0, 1)")
        for name, known in (
            ("lr_schedule", ("constant", "linear", "cosine", "warmup-stable-decay")),
            ("activation_checkpointing", ("auto", "on", "off")),
            ("normalisation", ("auto", "token", "sequence", "constant")),
            ("dtype", ("float32", "bfloat16", "float64")),
            ("device", ("auto", "cpu", "cuda")),
        ):
            if getattr(self, name) not in known:
                raise TrainerConfigError(f"found {name} = {getattr(self, name)!r}, expected one of {', '.join(known)}")
        if self.zero_stage not in (None, 1, 2, 3):
            raise TrainerConfigError(f"found zero_stage = {self.zero_stage!r}, expected 1, 2, 3 or none")
        self._check_loss()
        self._check_schedule()
        if any(part != "optimizer" for part in self.offload):
            raise TrainerConfigError(f"found offload = {list(self.offload)!r}, expected ['optimizer'] or []")

    def _check_loss(self) -> None:
        try:
            self.open_loss()
            self.open_advantages()
        except PluginError as error:
            raise TrainerConfigError(str(error)) from error
        if self.advantages == AUTO and self.advantages_options:
            raise TrainerConfigError(
                f"found options of advantages ({', '.join(self.advantages_options)}) without their name, expected it"
            )
        if self.critic != CriticConfig() and not self.has_critic:
            raise TrainerConfigError(
                f"found settings of a critic with advantages {self.advantages_name!r} (of the loss {self.loss!r}), which need "
                "none; expected no such settings, or advantages 'gae', as the loss 'ppo' has them"
            )
        if self.normaliser == "constant" and not self.max_response_tokens:
            raise TrainerConfigError(
                f"found normalisation = 'constant' (of the loss {self.loss!r}) without max_response_tokens, expected most "
                "tokens of a response, by which each response's sum is divided"
            )
        if self.overlong_buffer and not self.overlong_buffer <= self.max_response_tokens:
            raise TrainerConfigError(
                f"found overlong_buffer = {self.overlong_buffer} with max_response_tokens = {self.max_response_tokens}, "
                "expected at most as many: these are the last tokens of a response"
            )

    def _check_schedule(self) -> None:
        """Refuse settings of the learning rate that the schedule does not read, or lacks."""
        read = {"lr_decay_steps": self.lr_schedule != "constant", "lr_min": self.lr_schedule != "constant"}
        for name, is_read in (read | {"lr_stable_steps": self.lr_schedule == "warmup-stable-decay"}).items():
            if getattr(self, name) and not is_read:
                raise TrainerConfigError(
                    f"found {name} = {getattr(self, name)!r} with lr_schedule = {self.lr_schedule!r}, which does not read it; "
                    "expected lr_schedule = "
                    + (
                        "'warmup-stable-decay'"
                        if name == "lr_stable_steps"
                        else "'linear', 'cosine' or 'warmup-stable-decay'"
                    )
                )
        if self.lr_schedule != "constant" and not self.lr_decay_steps:
            raise TrainerConfigError(
                f"found lr_decay_steps = 0 with lr_schedule = {self.lr_schedule!r}, expected over how many optimizer steps the "
                "rate falls"
            )
        if self.lr_min > self.lr:
            raise TrainerConfigError(f"found lr_min = {self.lr_min!r} above lr = {self.lr!r}, expected at most that")

    def open_loss(self) -> Loss:
        """The loss."""
        return open_loss(self.loss, self.loss_options)

    @property
    def advantages_name(self) -> str:
        """The advantages: those that are named, or else the loss's."""
        return self.open_loss().advantages if self.advantages == AUTO else self.advantages

    def open_advantages(self) -> Advantages | CriticAdvantages:
        """The advantages: those that are named, or else the loss's."""
        return open_advantages(self.advantages_name, self.advantages_options)

    @property
    def has_critic(self) -> bool:
        """Whether a critic is trained: whether the advantages need one."""
        return isinstance(self.open_advantages(), CriticAdvantages)

    @property
    def of_critic(self) -> TrainerConfig:
        """The settings of the critic's own model and optimizer."""
        lr = self.lr if self.critic.lr is None else self.critic.lr
        schedule: dict[str, Any] = dict.fromkeys(("warmup_steps", "lr_stable_steps", "lr_decay_steps", "lr_min"), 0)
        schedule |= {"lr": lr, "lr_schedule": "constant", "grad_clip_norm": self.critic.grad_clip_norm}
        return replace(self, **schedule, adapter=AdapterConfig(), kl_coefficient=0.0)

    @property
    def keeps_reference(self) -> bool:
        """Whether a frozen copy of the model that training began with is kept, for the loss or for rewards of tokens."""
        advantages = self.open_advantages()
        of_rewards = isinstance(advantages, CriticAdvantages) and advantages.kl_coefficient > 0
        return self.kl_coefficient > 0 or of_rewards

    @property
    def normaliser(self) -> Normalisation:
        """How tokens are weighed: as `normalisation` says, or else the loss."""
        return self.open_loss().normalisation if self.normalisation == "auto" else self.normalisation

    def early_gradients_refused(self, *, updates: bool = False) -> str:
        """Why no gradient can be computed before the batch is complete, in one line; empty if it can.

        Args:
            updates: whether each part of a batch has an optimizer step of its own; otherwise gradients of parts add up to the
                batch's.
        """
        advantages = self.open_advantages()
        if not self.open_loss().streams and not updates:
            return (
                f"found the loss {self.loss!r} with gradients of parts of a batch, expected another: it needs all of it"
            )
        if isinstance(advantages, CriticAdvantages):
            found = "whiten = true" if advantages.whiten else f"critic epochs = {self.critic.epochs}"
            expected = "whiten = false" if advantages.whiten else "1"
            if not advantages.whiten and (self.critic.epochs == 1 or updates):
                return ""
            return (
                f"found advantages = {self.advantages_name!r} (with the loss {self.loss!r}) with {found} and gradients of "
                f"parts of a batch, expected {expected}: it needs the values of the whole batch"
            )
        if advantages.needs_batch:
            return (
                f"found advantages = {self.advantages_name!r} (with the loss {self.loss!r}) with gradients of parts of a "
                "batch, expected others, such as 'group': they need the rewards of the whole batch"
            )
        return ""


def check_owners(config: TrainerConfig, backend: str) -> None:
    """Refuse settings that only another backend reads.

    Raises:
        TrainerConfigError: one is set.
    """
    for name, owner, unset in (
        ("tensor_parallel", "megatron", 1),
        ("zero_stage", "deepspeed", None),
        ("offload", "fsdp2", ()),
        ("compile", "fsdp2", False),
    ):
        if owner != backend and getattr(config, name) != unset:
            raise TrainerConfigError(
                f"found {name} = {getattr(config, name)!r} with backend {backend}, expected {unset!r}, or backend {owner}"
            )
