"""What a configuration file may say. Strict: an unknown key or a wrong type is an error that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _as_path(value: Any) -> Any:
    return Path(value) if isinstance(value, str) else value


FilePath = Annotated[Path, BeforeValidator(_as_path)]


def _as_choice(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class Choice(BaseModel):
    """A policy by name, with its options: ``"on-idle"`` or ``{ name = "best-fit", period_s = 5.0 }``."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def options(self) -> dict[str, Any]:
        """Everything but the name."""
        return dict(self.model_extra or {})


Policy = Annotated[Choice, BeforeValidator(_as_choice)]


class TaskConfig(_Strict):
    """What is learned: a generated task by name, or prompt files with a verifier."""

    name: str | None = None
    train: FilePath | None = None
    held_out: FilePath | None = None
    verifier: str = "math"
    train_size: Positive = 20_000
    held_out_size: Positive = 256
    options: dict[str, Any] = {}


class SmallModelConfig(_Strict):
    """A small Qwen3 built from a configuration, for machines without a download."""

    hidden: Positive = 64
    layers: Positive = 3
    heads: Positive = 4
    kv_heads: Positive = 2
    head_dim: Positive = 32
    mlp: Positive = 192


class ModelConfig(_Strict):
    """The model that training starts from: a Hugging Face directory, or a small one with a warm start."""

    path: FilePath | None = None
    small: SmallModelConfig | None = None
    tokenizer: dict[str, Any] = {}


class WarmStartConfig(_Strict):
    """Supervised fine-tuning of the small model on generated demonstrations; cached."""

    steps: Positive = 600
    batch: Positive = 32
    lr: float = Field(default=4e-3, gt=0)
    processes: Positive = 1
    demonstrations: Positive = 20_000
    continued_lr_share: float = Field(default=0.1, gt=0)
    options: dict[str, Any] = {}


class PipelineConfig(_Strict):
    """One policy per axis, and the quantities they work with."""

    admission: Policy = Choice(name="inherent")
    batching: Policy = Choice(name="plain")
    routing: Policy = Choice(name="least-loaded")
    sync: Policy = Choice(name="on-idle")
    relocation: Policy = Choice(name="best-fit")
    training: Policy = Choice(name="full-batch")
    provisioning: Policy = Choice(name="static")
    recovery: Policy = Choice(name="isolate")
    sampler: Policy = Choice(name="fifo")
    steps: Positive = 60
    prompts_per_step: Positive = 32
    samples_per_prompt: Annotated[int, Field(gt=1)] = 8
    prompts_per_replica: Positive = 16
    buffer_prompts: Positive | None = None
    cycle_s: float = Field(default=0.0, ge=0)


class CostModelConfig(_Strict):
    """Seconds of a decoding step: k1 x tokens in the KV cache + max(k2, k3 x trajectories) + k4 (StaleFlow, equation 11).

    `tailrace fit-cost RUN` fits them to what a run's replicas did.
    """

    k1: float = Field(ge=0)
    k2: float = Field(ge=0)
    k3: float = Field(ge=0)
    k4: float = Field(ge=0)


class RolloutConfig(_Strict):
    """Replicas and their engine."""

    engine: str = "auto"
    replicas: Positive = 2
    temperature: float = Field(default=1.0, gt=0)
    max_tokens: Positive = 192
    cost_model: CostModelConfig | None = None
    options: dict[str, Any] = {}


class TrainerConfigModel(_Strict):
    """The trainer. Its options are those of `tailrace.trainer.TrainerConfig`."""

    backend: str = "fsdp2"
    processes: Positive = 1
    options: dict[str, Any] = {}


class EvaluationConfig(_Strict):
    """Held-out accuracy, and the controls without RL that it is shown beside."""

    every: Annotated[int, Field(ge=0)] = 10
    controls: bool = True


class CheckpointConfig(_Strict):
    """Checkpoints of the trainer."""

    every: Positive = 1
    keep: Annotated[int, Field(gt=1)] = 2


class RelayConfig(_Strict):
    """The relays that hold weight versions: one per machine of a cluster; more on one machine to try the chain.

    `host` is the address that they listen on; ``"node"`` is each machine's own in the Ray cluster.
    """

    count: Positive = 1
    host: str = "127.0.0.1"


class ExecutorConfig(_Strict):
    """Where the roles run."""

    name: Literal["ray", "local"] = "ray"
    ray_address: str | None = None
    replica_gpus: float = Field(default=0.0, ge=0)
    trainer_gpus: float = Field(default=0.0, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"


class DeadlineConfig(_Strict):
    """How long anything is waited for."""

    start_s: Seconds = 600.0
    step_s: Seconds = 1800.0
    publish_s: Seconds = 600.0
    pull_s: Seconds = 600.0
    score_s: Seconds = 300.0
    suspect_s: Seconds = 10.0
    silent_s: Seconds = 60.0
    verify_s: Seconds = 10.0


class RunConfig(_Strict):
    """A whole run."""

    app: str = "laminar"
    seed: int = 0
    task: TaskConfig = TaskConfig()
    model: ModelConfig = ModelConfig()
    warm_start: WarmStartConfig = WarmStartConfig()
    pipeline: PipelineConfig = PipelineConfig()
    rollout: RolloutConfig = RolloutConfig()
    trainer: TrainerConfigModel = TrainerConfigModel()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    relay: RelayConfig = RelayConfig()
    executor: ExecutorConfig = ExecutorConfig()
    deadlines: DeadlineConfig = DeadlineConfig()
    faults: tuple[str, ...] = ()
    fleet: dict[str, Any] = {}  # what only the simulator reads; it is strict about it too
