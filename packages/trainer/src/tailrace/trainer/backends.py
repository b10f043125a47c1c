"""The backends that are built in: what each refuses before a run starts. Their libraries are imported when a rank is made."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailrace.contracts import need_extra
from tailrace.trainer.backend import BackendPlugin, TrainingBackend
from tailrace.trainer.config import TrainerConfig, check_owners
from tailrace.trainer.errors import TrainerConfigError


class Fsdp2(BackendPlugin):
    """PyTorch's FSDP2; see `tailrace.trainer.fsdp2`."""

    adapters = critics = True

    def __call__(
        self, model_path: str | Path, config: TrainerConfig, *, rank: int, world_size: int, rendezvous: str | None
    ) -> TrainingBackend:
        from tailrace.trainer import TrainerWorker

        return TrainerWorker(model_path, config, rank=rank, world_size=world_size, rendezvous=rendezvous)

    def check(self, config: TrainerConfig, processes: int) -> None:
        del processes
        check_owners(config, "fsdp2")

    def import_ahead(self) -> None:
        from tailrace.trainer import TrainerWorker  # noqa: F401 - with torch and transformers


class DeepSpeed(BackendPlugin):
    """DeepSpeed's ZeRO; see `tailrace.trainer.deepspeed`."""

    adapters = critics = True

    def __call__(
        self, model_path: str | Path, config: TrainerConfig, *, rank: int, world_size: int, rendezvous: str | None
    ) -> TrainingBackend:
        from tailrace.trainer import TrainerWorker
        from tailrace.trainer.deepspeed import DeepSpeedModel

        check_deepspeed(config)
        return TrainerWorker(
            model_path, config, rank=rank, world_size=world_size, rendezvous=rendezvous, model=DeepSpeedModel
        )

    def check(self, config: TrainerConfig, processes: int) -> None:
        del processes
        need_extra("tailrace-trainer", "deepspeed", "deepspeed")
        check_deepspeed(config)

    def import_ahead(self) -> None:
        from tailrace.trainer import TrainerWorker  # noqa: F401 - with torch and transformers
        from tailrace.trainer.deepspeed import import_deepspeed

        import_deepspeed()


def check_deepspeed(config: TrainerConfig) -> None:
    """Check what DeepSpeed's ZeRO can do.

    Raises:
        TrainerConfigError: it cannot do what the settings say.
    """
    check_owners(config, "deepspeed")
    if config.cells > 1:
        raise TrainerConfigError(
            f"found cells = {config.cells} with backend deepspeed, expected 1, or backend fsdp2: ZeRO's ranks compute together"
        )
    if config.dtype == "float64":
        raise TrainerConfigError(
            "found dtype = 'float64' with backend deepspeed, expected 'float32' or 'bfloat16', or backend fsdp2"
        )
    if config.dtype == "bfloat16" and config.zero_stage == 1:
        raise TrainerConfigError(
            "found zero_stage = 1 with dtype = 'bfloat16', expected 2 or 3: with stage 1 DeepSpeed takes another optimizer"
        )


class Megatron(BackendPlugin):
    """Megatron-core's GPTModel, tensor-parallel; see `tailrace.trainer.megatron`."""

    critics = True

    def __call__(
        self, model_path: str | Path, config: TrainerConfig, *, rank: int, world_size: int, rendezvous: str | None
    ) -> TrainingBackend:
        from tailrace.trainer import TrainerWorker
        from tailrace.trainer.megatron import MegatronModel
        from tailrace.trainer.weights_file import read_config

        init = config.critic.init
        for path in (Path(model_path), *([init] if init is not None else [])):
            check_megatron(config, world_size, read_config(path))
        if config.tensor_parallel > 1:  # before CUDA starts: Megatron relies on one queue to overlap sums with products
            os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
        return TrainerWorker(
            model_path, config, rank=rank, world_size=world_size, rendezvous=rendezvous, model=MegatronModel
        )

    def check(self, config: TrainerConfig, processes: int) -> None:
        need_extra("tailrace-trainer", "megatron", "megatron.core")
        check_owners(config, "megatron")
        check_megatron(config, processes)

    def check_model(self, model: Mapping[str, Any], config: TrainerConfig, processes: int) -> None:
        check_megatron(config, processes, model)

    def import_ahead(self) -> None:
        from tailrace.trainer.megatron import MegatronModel  # noqa: F401 - with torch
        from tailrace.trainer.megatron_gpt import import_megatron
        from tailrace.trainer.worker import TrainerWorker  # noqa: F401

        import_megatron()


def check_megatron(config: TrainerConfig, processes: int, model: Mapping[str, Any] | None = None) -> None:
    """Check what Megatron-core's GPTModel can do.

    Args:
        config: the settings.
        processes: number of ranks.
        model: the model's Hugging Face config, as a dict; None: not known yet.

    Raises:
        TrainerConfigError: it cannot: names what was found, and what would fit.
    """
    sizes = {"processes of a cell": processes // config.cells}
    if model is not None:
        _check_qwen(model)
        heads = model.get("num_attention_heads") or 0
        sizes |= {"heads": heads, "key-value heads": model.get("num_key_value_heads") or heads}
        sizes |= {"columns of the MLP": model.get("intermediate_size") or 0}
    for what, size in sizes.items():
        if size % config.tensor_parallel:
            raise TrainerConfigError(
                f"found tensor_parallel = {config.tensor_parallel} and {size} {what} with backend megatron, expected a divisor "
                "of " + ", ".join(f"{number} {name}" for name, number in sizes.items())
            )


def _check_qwen(model: Mapping[str, Any]) -> None:
    kind = model.get("model_type")
    rope = model.get("rope_parameters") or model.get("rope_scaling") or {}
    attention = set(model.get("layer_types") or ("full_attention",))
    if model.get("use_sliding_window"):
        attention.add("sliding_attention")
    for key, found, expected in (
        ("model_type", kind, ("qwen2", "qwen3")),
        ("hidden_act", model.get("hidden_act", "silu"), ("silu",)),
        ("attention_dropout", model.get("attention_dropout") or 0.0, (0.0,)),
        ("rope_type", rope.get("rope_type", rope.get("type", "default")), ("default",)),
        ("partial_rotary_factor", rope.get("partial_rotary_factor", 1.0), (1.0,)),
        ("layer_types", ", ".join(sorted(attention)), ("full_attention",)),
        ("attention_bias", kind == "qwen3" and bool(model.get("attention_bias")), (False,)),
        ("qkv_bias", bool(model.get("qkv_bias", True)), (True,)),
    ):
        if found not in expected:
            raise TrainerConfigError(
                f"found a model with {key} = {str(found)[:60]!r} for backend megatron, expected "
                f"{' or '.join(map(repr, expected))}; backend fsdp2 trains any causal LM"
            )


fsdp2 = Fsdp2()
deepspeed = DeepSpeed()
megatron = Megatron()
