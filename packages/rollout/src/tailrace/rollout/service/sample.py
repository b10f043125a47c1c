"""What the service yields, and what it keeps of a sample until then."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.contracts import FinishReason, Sampling


@dataclass(frozen=True, slots=True)
class Sample:
    """A complete response.

    Args:
        prompt: position of its prompt in the request.
        sample: index among the samples of that prompt, from 0.
        tokens: response token ids.
        logprobs: log-probability (natural log) of each token under the weights that drew it.
        versions: weight version of each token; they never decrease.
        finish: why it ended.
    """

    prompt: int
    sample: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    finish: FinishReason

    @property
    def key(self) -> tuple[int, int]:
        """Prompt and sample."""
        return self.prompt, self.sample


@dataclass(frozen=True, slots=True)
class SampleOrder:
    """A sample to generate.

    Args:
        id: unique within the service.
        prompt: position of its prompt in the request.
        sample: index among the samples of that prompt.
        tokens: prompt token ids.
        sampling: how its tokens are drawn.
    """

    id: str
    prompt: int
    sample: int
    tokens: tuple[int, ...]
    sampling: Sampling
