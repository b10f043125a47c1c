"""Seeds of single requests in transformers' continuous batching, which seeds a whole engine only.

A seeded request's next token is the one at a point of the cumulative distribution that follows from the seed and the token's
place in the sequence alone. So it does not matter what else is in the batch, nor whether the request was preempted.

    add_request(noise_seed=...) ──► Noise (a logits processor: one number per row) ──► sample (in place of the runner's own)
"""

from __future__ import annotations

import hashlib
from typing import Any

_BITS = 31
_UNSEEDED = -1


def noise(seed: int, place: int) -> int:
    """A number from 0 to 2**31 - 1 for the token at a place of a sequence."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {place}".encode(), digest_size=4).digest()) >> 1


def keep_seeds(manager: Any) -> None:
    """Let a manager take `noise_seed` with a request. Call it before the manager warms up."""
    import torch
    from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor

    class Noise(ContinuousBatchingLogitsProcessor):
        """Leaves the scores as they are and keeps the numbers of the batch for `sample`."""

        supported_kwargs = {"noise_seed": int}  # noqa: RUF012
        ignored_kwargs = ()

        def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
            int32_tensor.fill_(_UNSEEDED)

        def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
            # the position is already that of the token to come
            states = [request.state for request in requests_with_new_token]
            seeds = [(state.logit_processor_kwargs.get("noise_seed"), state.position_offset) for state in states]
            numbers = [_UNSEEDED if seed is None else noise(seed, place) for seed, place in seeds]
            return torch.tensor(numbers, dtype=torch.int32)

        def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
            self.numbers = tensor_arg[: scores.size(0)]
            return scores

    processors, noises = manager.logit_processor, Noise()
    processors.logits_processor.append(noises)
    processors.tensors_required += 1
    processors.supported_keys.update(noises.supported_kwargs)
    processors.do_processing = True

    def sample(scores: torch.Tensor, output_ids: torch.Tensor) -> None:
        """Does what `ModelRunner._sample` does with log-probabilities, but draws rows that have a seed by their seed."""
        probabilities = torch.softmax(scores[0], dim=-1)
        numbers = noises.numbers[: len(probabilities), None]
        cumulative = probabilities.double().cumsum(-1)
        points = (numbers.double() + 0.5) / 2**_BITS * cumulative[:, -1:]
        seeded = torch.searchsorted(cumulative, points)
        tokens = torch.where(numbers == _UNSEEDED, torch.multinomial(probabilities, 1), seeded)
        count = len(tokens)
        output_ids[0, :count].copy_(tokens[:, 0])
        output_ids[1, :count].copy_(probabilities.gather(1, tokens)[:, 0].log().view(dtype=torch.int32))

    manager.batch_processor = manager._create_batch_processor()
    manager.batch_processor.model_runner._sample = sample
