"""Seeds of single requests, in engines that have none of their own, or lose them.

Transformers' continuous batching seeds a whole engine only. A seeded request's next token is here the one at a point of the
cumulative distribution that follows from the seed and the token's place in the sequence alone. So it does not matter what else
is in the batch, nor whether the request was preempted.

    add_request(noise_seed=...) ──► Noise (a logits processor: one number per row) ──► sample (in place of the runner's own)

vLLM on CPU computes a prompt that does not fit into one step in parts. After each but the last it puts the generator
of a seeded request back by one token, since what it drew is not used. For that it sets an offset. Generators on CPU have none,
and the engine dies.
"""

from __future__ import annotations

import hashlib
from typing import Any

from tailrace.rollout.vllm_versions import seed_every_row

_BITS = 31
_UNSEEDED = -1


def noise(seed: int, place: int) -> int:
    """A number from 0 to 2**31 - 1 for the token at a place of a sequence."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {place}".encode(), digest_size=4).digest()) >> 1


def keep_transformers_seeds(manager: Any) -> None:
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


def keep_vllm_seeds() -> None:
    """Give requests on CPU generators that can go back. Call it before an engine is built; more than once is fine."""
    import torch
    from vllm.v1.worker import gpu_model_runner

    seed_every_row()
    plain: Any = gpu_model_runner.CachedRequestState
    if plain.__name__ != "CachedRequestState":
        return

    class RewoundGenerator(torch.Generator):
        """A generator of one number for each token of a response, which `tokens` lists so far."""

        seed_first: int
        tokens: list[int]

        def get_offset(self) -> int:
            return 0

        def set_offset(self, offset: int) -> None:
            """Go back to before the next token, whatever the offset."""
            del offset
            self.manual_seed(self.seed_first)
            torch.randint(0, 2**31, (len(self.tokens),), generator=self)

    class RewindingRequestState(plain):
        """The worker's state of a request."""

        generator: Any

        def __post_init__(self) -> None:
            super().__post_init__()
            given: Any = self.generator
            if given is not None and given.device.type == "cpu":
                generator = self.generator = RewoundGenerator(device="cpu")
                generator.seed_first, generator.tokens = given.initial_seed(), self.output_token_ids
                generator.manual_seed(given.initial_seed())

    gpu_model_runner.CachedRequestState = RewindingRequestState
