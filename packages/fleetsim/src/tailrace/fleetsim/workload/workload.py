"""The workload of a simulated run: its samples, and its description."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tailrace.fleetsim.workload.lengths import Spread

Turns = tuple[tuple[int, float], ...]
__all__ = ["Description", "ModelledSample", "Spread", "Workload"]


@dataclass(frozen=True, slots=True)
class Description:
    """Figures of a workload. As a string it has one line for each.

    Args:
        prompt, response: figures of lengths, with the cap applied.
        calls: mean number of calls of the environment in a trajectory.
        environment_s: mean seconds that a trajectory spends in the environment.
        notes: remarks for the reader, one sentence each.
    """

    prompt: Spread
    response: Spread
    calls: float = 0.0
    environment_s: float = 0.0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"prompt: {self.prompt}", f"response: {self.response}"]
        if self.calls:
            lines.append(
                f"environment: {self.calls:.1f} calls and {self.environment_s:,.1f} s in a trajectory, on average"
            )
        return "\n".join([*lines, *self.notes])


class Workload(ABC):
    """The prompts and responses of a run. Pure: the same arguments give the same result, whatever was called before.

    `max_tokens` is the most that a response may have. One with so many is one that this limit has ended.
    """

    max_tokens: int

    @abstractmethod
    def group(self, index: int, samples: int, version: int = 0, draw: int | None = None) -> list[ModelledSample]:
        """The first samples of a group. More samples begin with the same ones.

        Args:
            index: index of the group in the prompt stream; negative ones are separate groups, for evaluation.
            samples: number of samples, at least 0.
            version: version of the generating weights, which matters only to the drift of lengths. A group that has started
                keeps the version that it began with.
            draw: number of the draw: another attempt at the prompt, of other samples; None or the index for the first.
        """

    def sample(self, index: int, position: int, version: int = 0) -> ModelledSample:
        """The sample of a group at a position from 0 on, surplus ones included. Takes as long as all samples before it."""
        return self.group(index, position + 1, version)[position]

    @property
    def turns(self) -> bool:
        """Whether any trajectory has several turns, between which an environment answers."""
        return False

    @abstractmethod
    def describe(self, version: int = 0) -> Description:
        """Figures of the workload at a version."""


@dataclass(slots=True)
class ModelledSample:
    """One sample of a group. It is not frozen, since millions are created and freezing would dominate that time.

    Args:
        prompt_tokens: number of prompt tokens, the same in a whole group.
        turns: response tokens of each turn, and the seconds in the environment after it (0 after the last).
        reward: the verifier's reward.
        reward_s: seconds to score it, without the fleet's delays; infinite if its program never ends.
        reference_s: seconds of the prompt's reference solution; None if it has none.
        kind: the pool that scores it; empty if the workload has no kinds.
    """

    prompt_tokens: int
    turns: Turns
    reward: float
    reward_s: float = 0.0
    kind: str = ""
    reference_s: float | None = None

    @property
    def response_tokens(self) -> int:
        """Number of response tokens of all turns."""
        turns = self.turns
        return turns[0][0] if len(turns) == 1 else sum(tokens for tokens, _ in turns)
