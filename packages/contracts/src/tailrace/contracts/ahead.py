"""What policies may also say: which prompts come next, and whether they plan with the tokens of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, Self, runtime_checkable


@runtime_checkable
class PlansTokens(Protocol):
    """What a routing or relocation policy may also have, so that views count prompts (`TrajectoryView.tokens`)."""

    @property
    def plans_tokens(self) -> bool:
        """Whether it plans with the tokens of trajectories. A policy always gives the same answer."""
        ...


@runtime_checkable
class LearnsCosts(Protocol):
    """What a routing or relocation policy may also have, to plan with the costs of a decoding step that the run itself fits."""

    def with_costs(self, k1: float, k2: float, k3: float, k4: float) -> Self:
        """The same policy with these coefficients: seconds of a step are k1 x tokens + max(k2, k3 x trajectories) + k4."""
        ...


@runtime_checkable
class LooksAhead(Protocol):
    """What a `BatchingSource` may also have, so that the lengths of its prompts are predicted before they are launched.

    The prompts of any other source are predicted once they are launched.
    """

    def ahead(self, count: int) -> Sequence[int]:
        """At most `count` prompts that it will probably launch next, in this order. Asking changes nothing.

        A prompt that is not launched after all costs a prediction, one that is not named has it later: neither is an error.
        """
        ...
