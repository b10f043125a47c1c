"""Whether the trainer fits on the GPUs that a configuration asks for, by arithmetic."""

from __future__ import annotations

from tailrace.cli.errors import NotHereError
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.build import trainer_config
from tailrace.trainer.memory import DenseModel, advice, read_shape, trainer_memory

_CUDA_BYTES = 1_500_000_000  # of CUDA, its libraries and NCCL, before anything is loaded
_GB = 1e9


def trainer_memory_in_words(config: RunConfig, shape: DenseModel | None = None) -> str | None:
    """What a rank of the trainer needs of its GPU, for a dry run; None if it has none or if it is not counted.

    Counted is FSDP2 without an adapter, of a dense Llama, Mistral, Qwen2 or Qwen3.

    Args:
        config: the configuration.
        shape: the model's shape; None: as its directory tells.

    Raises:
        NotHereError: it does not fit; the line says which setting to change.
        ModelError: the model's configuration is damaged.
    """
    table = config.trainer
    if not config.executor.trainer_gpus or table.backend != "fsdp2" or table.adapter.rank or config.model.path is None:
        return None
    shape = shape or read_shape(config.model.path)
    if shape is None:
        return None
    settings, ranks = trainer_config(config), table.processes // table.cells
    longest = int(config.rollout.options.get("max_model_len") or config.rollout.max_tokens)
    limit = int(config.executor.gpu_memory_gb * _GB * min(1.0, config.executor.trainer_gpus)) - _CUDA_BYTES
    found = trainer_memory(shape, settings, ranks=ranks, longest=longest, gpu=True)
    parts = (
        f"{found.state / _GB:.1f} GB of parameters, gradients and moments, {found.activations / _GB:.1f} of activations, "
        f"{found.logits / _GB:.1f} of logits"
    )
    need = f"about {(found.peak + _CUDA_BYTES) / _GB:.1f} GB"
    if found.peak > limit:
        raise NotHereError(
            f"keys 'trainer.options' and 'executor.gpu_memory_gb': found a trainer that needs {need} on each GPU ({parts}), "
            f"expected at most {(limit + _CUDA_BYTES) / _GB:.1f}: set "
            + advice(shape, settings, ranks=ranks, longest=longest, limit=limit)
        )
    return f"{need} of {(limit + _CUDA_BYTES) / _GB:.1f} on each of the trainer's GPUs, by arithmetic: {parts}"
