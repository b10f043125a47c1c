"""Axis batching: which prompts and how many samples are launched, and which groups are worth training on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tailrace.contracts import GroupEnd, Launch, Progress, PromptFate, Tried
from tailrace.pipeline.errors import PolicyError


@dataclass(frozen=True, slots=True)
class Redundant:
    """Launches more samples or groups than needed and aborts the slowest (StaleFlow, section 4.3 and appendix C).

    This favours short responses, since the aborted ones take long. The report shows by how much.

    Args:
        samples: trajectories with which a group is trained.
        surplus_samples: further samples launched for each group, which is complete without the slowest (group level).
        surplus_groups: further groups generated for each batch, which is complete without the slowest (batch level).
        filter_equal_rewards: whether to filter groups whose rewards are all equal, since they have no signal (DAPO's dynamic
            sampling).

    Raises:
        PolicyError: a number is out of its range.
    """

    samples: int = 8
    surplus_samples: Annotated[int, Tried((0, 1, 2))] = 0
    surplus_groups: Annotated[int, Tried((0, 0, 1, 2))] = 0
    filter_equal_rewards: bool = False

    def __post_init__(self) -> None:
        if self.samples < 1 or self.surplus_samples < 0 or self.surplus_groups < 0:
            raise PolicyError(
                f"found samples={self.samples}, surplus_samples={self.surplus_samples} and "
                f"surplus_groups={self.surplus_groups}, expected at least 1, 0 and 0"
            )

    def open(self) -> InOrder:
        """A source of the prompts in order, each once."""
        return InOrder(self)


def plain(samples: int = 8, *, filter_equal_rewards: bool = False) -> Redundant:
    """The next prompt of the stream, with as many samples as the algorithm needs."""
    return Redundant(samples, filter_equal_rewards=filter_equal_rewards)


class InOrder:
    """One group for each prompt of the stream, in order. See `BatchingSource`."""

    def __init__(self, policy: Redundant) -> None:
        self._samples, self._surplus = policy.samples, policy.surplus_samples
        self._filters = policy.filter_equal_rewards
        self._prompt = 0

    def next(self, progress: Progress) -> Launch:  # noqa: ARG002 - the protocol's arguments
        """The next prompt with its samples, never None."""
        return Launch(self._prompt, self._samples + self._surplus, self._samples)

    def launched(self, group: int, launch: Launch) -> None:  # noqa: ARG002 - the protocol's arguments
        """Go to the next prompt."""
        self._prompt = launch.prompt + 1

    def keeps(self, group: int, rewards: Sequence[float]) -> bool:  # noqa: ARG002 - the protocol's arguments
        """Whether the rewards differ, if the policy filters equal rewards; otherwise True."""
        return not self._filters or len(set(rewards)) > 1

    def ended(self, group: int, end: GroupEnd) -> PromptFate:  # noqa: ARG002 - the protocol's arguments
        """A prompt never comes again, whatever became of its group."""
        return PromptFate.DONE

    def state(self) -> dict[str, Any]:
        """The next prompt, which is the whole state."""
        return {"prompt": self._prompt}
