"""How much memory fine-tuning a language model as a ranker takes, by arithmetic on its shape, before anything is loaded.

weights       what is frozen beside adapters, in the dtype in which it computes
learning      of each weight that learns, float32: itself, its gradient, two moments, the best so far, the copy that predicts
              meanwhile
activations   what layers keep of one part of a batch, by `tailrace.trainer.memory`

`auto` learns several objectives one after another, each with a model of its own, and keeps them until it chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tailrace.ranker import Sft
from tailrace.ranker.features import COUNT
from tailrace.ranker.learned.options import LARGE_PARAMETERS
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.memory import DTYPE_BYTES, DenseModel, read_shape, trainer_memory

_WEIGHT_BYTES, _LEARNING_BYTES = 4, 4 * 6


@dataclass(frozen=True, slots=True)
class FineTuningMemory:
    """Bytes.

    Args:
        weights, learning, activations: see above.
        learns: how many weights learn, with all objectives that are tried.
    """

    weights: int
    learning: int
    activations: int
    learns: int

    @property
    def peak(self) -> int:
        """All of it."""
        return self.weights + self.learning + self.activations

    def __str__(self) -> str:
        parts = ((self.weights, "weights"), (self.learning, "what learns"), (self.activations, "activations"))
        shown = ", ".join(f"{size / 1e9:.2f} GB of {name}" for size, name in parts)
        return (
            f"about {self.peak / 1e9:.2f} GB to fine-tune in ({shown}; {self.learns / 1e6:.1f} million weights learn)"
        )


def fine_tuning_memory(directory: Path, method: Sft, *, gpu: bool) -> FineTuningMemory | None:
    """Predict it; None for an architecture whose shape is not counted.

    Args:
        directory: of the model.
        method: with its options.
        gpu: whether it computes on a GPU.

    Raises:
        ModelError: its configuration is missing or damaged.
    """
    shape = read_shape(directory)
    if shape is None:
        return None
    dtype = ("bfloat16" if gpu else "float32") if method.dtype == "auto" else method.dtype
    large = shape.parameters > LARGE_PARAMETERS
    again = method.activation_checkpointing == "on" or (method.activation_checkpointing == "auto" and large)
    settings = TrainerConfig(
        dtype=dtype,
        micro_batch_tokens=min(method.batch_tokens, method.batch * method.most_tokens),
        activation_checkpointing="on" if again else "off",
    )
    activations = trainer_memory(shape, settings, ranks=1, longest=method.most_tokens, gpu=gpu).activations
    learns, frozen = shape.parameters, 0
    if method.lora_rank:
        size = DTYPE_BYTES[dtype]
        learns, frozen = adapter_parameters(shape, method.lora_rank), shape.parameters * size
        # Beside what the model keeps, each adapter keeps its input, and what A makes of it.
        inputs = 5 * shape.hidden + shape.queries + shape.mlp + 7 * method.lora_rank
        activations += settings.micro_batch_tokens * inputs * size * (1 if again else shape.layers)
    width = 2 * shape.hidden
    head = width * (width + COUNT + 9) + 6
    each = [learns + (0 if objective == "write" else head) for objective in method.objectives]
    learning = max(each) * _LEARNING_BYTES + (sum(each) - max(each)) * _WEIGHT_BYTES
    return FineTuningMemory(frozen * len(each), learning, activations, sum(each))


def adapter_parameters(shape: DenseModel, rank: int) -> int:
    """Weights of LoRA in all linear layers of a model."""
    ends = 2 * (shape.hidden + shape.queries) + 2 * (shape.hidden + shape.keys) + 3 * (shape.hidden + shape.mlp)
    return rank * shape.layers * ends
