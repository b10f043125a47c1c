"""The workload of a simulated run, and what is said about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tailrace.fleetsim.workload.lengths import Spread
from tailrace.fleetsim.workload.sample import Sample

__all__ = ["Description", "Sample", "Spread", "Workload"]


@dataclass(frozen=True, slots=True)
class Description:
    """A workload in numbers. As a string: a line for each.

    Args:
        prompt, response: lengths, after the cap.
        calls: mean calls of the environment in a trajectory.
        environment_s: mean seconds that a trajectory spends in the environment.
        notes: what a reader should know, a sentence each.
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
    """What a run generates. Pure: the same question has the same answer, whatever was asked before."""

    @abstractmethod
    def group(self, index: int, samples: int, version: int = 0) -> list[Sample]:
        """The first samples of a group. More samples begin with the same ones.

        Args:
            index: of the group in the prompt stream; negative ones are groups of their own, for evaluation.
            samples: how many, at least 0.
            version: of the weights that generate, which matters only to the drift of lengths. A group that is already
                under way keeps the version that it began with.
        """

    def sample(self, index: int, position: int, version: int = 0) -> Sample:
        """One sample of a group, from 0; surplus ones included. Takes as long as the samples before it."""
        return self.group(index, position + 1, version)[position]

    @abstractmethod
    def describe(self, version: int = 0) -> Description:
        """In numbers, as this version generates."""
