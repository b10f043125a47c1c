"""Seeds of single requests in vLLM on CPU (0.32).

A prompt that does not fit into one step is computed in parts. After each part but the last, vLLM puts the generator of a seeded
request back by one token, since what it drew is not used. For that it sets an offset. Generators on CPU have none, and the
engine dies.
"""

from __future__ import annotations

from typing import Any


def keep_seeds() -> None:
    """Give requests on CPU generators that can go back. Call it before an engine is built; more than once is fine."""
    import torch
    from vllm.v1.worker import gpu_model_runner

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
