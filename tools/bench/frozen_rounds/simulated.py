"""Responses of a virtual clock: all of a round run at once, and one ends after as many seconds as it has tokens.

Log lengths are normal, and half of their variance lies between prompts (within-group correlation 0.5). The longer a response is
for the model, the less likely it is right: with probability 1 / (1 + exp(z)), where z is its standardised log length.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

CORRELATION, SIGMA, MEDIAN = 0.5, 1.0, 500.0
_DRAWS = 2  # a prompt is deferred at most once


@dataclass(frozen=True)
class Response:
    """What is known of a response at frozen weights."""

    tokens: float
    reward: float


class Drawn:
    """The lengths and rewards of every sample of every prompt, in each of its draws: shape (draws, prompts, samples)."""

    def __init__(self, prompts: int, samples: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        between = rng.standard_normal((1, prompts, 1))
        within = rng.standard_normal((_DRAWS, prompts, samples))
        z = CORRELATION**0.5 * between + (1 - CORRELATION) ** 0.5 * within
        self.lengths = MEDIAN * np.exp(SIGMA * z)
        self.rewards = (rng.random(z.shape) < 1 / (1 + np.exp(z))).astype(float)

    def group(self, draw: int, prompt: int, samples: int) -> list[Response]:
        lengths, rewards = (each[draw, prompt, :samples].tolist() for each in (self.lengths, self.rewards))
        return [Response(length, reward) for length, reward in zip(lengths, rewards, strict=True)]


class VirtualClock:
    """A `Generator` of what was drawn."""

    def __init__(self, drawn: Drawn, *, same_noise: bool) -> None:
        self._drawn, self._same = drawn, same_noise
        self._starts: dict[int, int] = {}
        self._running: list[tuple[int, Response]] = []
        self._gone: set[int] = set()

    def start(self, prompts: Sequence[int], samples: int) -> None:
        running = []
        for prompt in prompts:
            draw = self._starts.get(prompt, 0)
            self._starts[prompt] = draw if self._same else draw + 1
            running += [(prompt, response) for response in self._drawn.group(draw, prompt, samples)]
        self._running, self._gone = sorted(running, key=lambda one: -one[1].tokens), set()

    def finished(self) -> tuple[int, Response]:
        while True:
            prompt, response = self._running.pop()
            if prompt not in self._gone:
                return prompt, response

    def abort(self, prompts: Iterable[int]) -> None:
        self._gone.update(prompts)
