"""One epoch of tail batching at frozen weights: which responses would be trained on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from tailrace.rollout import TailRounds

Response_co = TypeVar("Response_co", covariant=True)
R = TypeVar("R")


class Generator(Protocol[Response_co]):
    """Generates the groups of a round. A prompt that it starts again is redrawn."""

    def start(self, prompts: Sequence[int], samples: int) -> None: ...

    def finished(self) -> tuple[int, Response_co]:
        """The next response to end, with its prompt."""

    def abort(self, prompts: Iterable[int]) -> None: ...


def epoch(rounds: TailRounds, prompts: Sequence[int], generator: Generator[R]) -> tuple[dict[int, list[R]], int, int]:
    """The responses that each prompt is trained on, and the numbers of short and of long rounds."""
    stream = iter(prompts)
    trained: dict[int, list[R]] = {}
    kinds = {"short": 0, "long": 0}

    def take(count: int) -> list[int]:
        return list(itertools.islice(stream, count))

    while (opened := rounds.open(take)) is not None:
        kinds[opened.kind] += 1
        groups: dict[int, list[R]] = {prompt: [] for prompt in opened.prompts}
        generator.start(opened.prompts, opened.samples)
        while not rounds.full:
            prompt, response = generator.finished()
            groups[prompt].append(response)
            if len(groups[prompt]) == opened.needed:
                generator.abort([prompt, *rounds.completed(prompt)])
        trained |= {prompt: groups[prompt] for prompt in rounds.kept}
        rounds.close(rounds.kept)
    assert sorted(trained) == sorted(prompts), "each prompt of the epoch is trained on exactly once"
    return trained, kinds["short"], kinds["long"]
