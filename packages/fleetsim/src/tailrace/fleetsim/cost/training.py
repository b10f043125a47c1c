"""Cost of training: forward passes that prepare experience, gradients, optimizer steps."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from tailrace.fleetsim.cost.capacity import TRAINING_BYTES_PER_PARAM, check_training_fits
from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.hardware.devices import Device
from tailrace.fleetsim.hardware.models import ModelShape


@dataclass(frozen=True, slots=True)
class TrainingCost:
    """Training of one model on all of a trainer's devices.

    A mini-batch is described by its tokens, prompts included, by the sum of the squares of its lengths, for attention, and by
    its number of sequences: a short sequence over many devices takes as long as the kernels and messages of its layers, not as
    its arithmetic.

    Args:
        forward_token_s: seconds of a forward pass' matrix multiplications for a token.
        forward_square_token_s: seconds of its attention over s tokens, divided by s squared.
        backward: time of a backward pass in units of a forward pass.
        passes: number of forward passes that prepare experience (old log-probabilities, a reference model's).
        optimizer_s: seconds of an optimizer step without its gradients.
        forward_sequence_s: seconds of a forward pass for a sequence, whatever its length, divided by the sequences that are
            computed at once.
    """

    forward_token_s: float
    forward_square_token_s: float = 0.0
    _: KW_ONLY
    backward: float = 2.0
    passes: float = 1.0
    optimizer_s: float = 0.0
    forward_sequence_s: float = 0.0

    @classmethod
    def of(
        cls,
        model: ModelShape,
        device: Device,
        gpus: int,
        *,
        mfu: float | None = None,
        passes: float = 1.0,
        optimizer_s: float = 0.0,
        critic: bool = False,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        context_parallel: int = 1,
        layer_s: float = 0.0,
    ) -> TrainingCost:
        """The cost of training a model on `gpus` devices.

        Args:
            model: the model.
            device: the kind of device.
            gpus: number of devices.
            mfu: share of the devices' peak arithmetic that training achieves; None: the device's own.
            passes: see the class.
            optimizer_s: see the class.
            critic: whether a critic of the same size is trained and evaluated too (PPO), on the same devices.
            tensor_parallel, pipeline_parallel, context_parallel: devices over which layers, the stack of layers and a sequence
                are divided. Their product computes a sequence; the others compute other sequences at the same time.
            layer_s: seconds that a layer takes for a sequence beyond its arithmetic, in a forward pass. Pipeline stages work on
                different sequences at the same time.

        Raises:
            FleetError: `gpus` is below 1 or does not hold whole replicas of the model, or `mfu` is not above 0 and at most 1.
            DoesNotFitError: the state does not fit into the devices.
        """
        share = device.train_mfu if mfu is None else mfu
        if not 0 < share <= 1:
            raise FleetError(f"found an MFU of {share!r}, expected over 0 and at most 1")
        models, together = 2 if critic else 1, tensor_parallel * pipeline_parallel * context_parallel
        if gpus % together:
            raise FleetError(
                f"found {gpus} GPUs to train {model.name} with {tensor_parallel} x {pipeline_parallel} x {context_parallel} of "
                f"them on each sequence (tensor, pipeline, context), expected a multiple of {together}"
            )
        check_training_fits(model, device, gpus, models * TRAINING_BYTES_PER_PARAM)
        flops = gpus * device.peak_flops * share / models
        return cls(
            2.0 * model.gemm_params / flops,
            model.attention_flops_per_square_token / flops,
            passes=passes,
            optimizer_s=optimizer_s,
            forward_sequence_s=models * layer_s * model.layers * tensor_parallel * context_parallel / gpus,
        )

    def forward_s(self, tokens: int, square_tokens: float, sequences: int = 0) -> float:
        """Seconds of one forward pass."""
        arithmetic_s = tokens * self.forward_token_s + square_tokens * self.forward_square_token_s
        return arithmetic_s + sequences * self.forward_sequence_s

    def preparation_s(self, tokens: int, square_tokens: float, sequences: int = 0) -> float:
        """Seconds of the forward passes before a mini-batch."""
        return self.passes * self.forward_s(tokens, square_tokens, sequences)

    def update_s(self, tokens: int, square_tokens: float, optimizer_steps: int = 1, sequences: int = 0) -> float:
        """Seconds of the gradients of a batch and of its optimizer steps."""
        gradients_s = (1.0 + self.backward) * self.forward_s(tokens, square_tokens, sequences)
        return gradients_s + optimizer_steps * self.optimizer_s
