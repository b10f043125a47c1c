"""Axis batching: which prompts and how many samples are launched, and which groups are worth training on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.contracts import GroupEnd, Launch, Progress, PromptFate
from tailrace.pipeline.errors import PolicyError


@dataclass(frozen=True, slots=True)
class Redundant:
    """More than is needed, of which the slowest is aborted (StaleFlow, section 4.3 and appendix C).

    It favours short responses: what is aborted is what takes long. The report shows by how much.

    Args:
        samples: trajectories that a group is trained with.
        surplus_samples: further ones that are launched; the group is complete without the slowest (group level).
        surplus_groups: further groups that are generated for every batch, which is complete without the slowest (batch
            level).
        filter_equal_rewards: do not train on a group whose rewards are all the same: it has no signal (DAPO's dynamic
            sampling).

    Raises:
        PolicyError: a number makes no sense.
    """

    samples: int = 8
    surplus_samples: int = 0
    surplus_groups: int = 0
    filter_equal_rewards: bool = False

    def __post_init__(self) -> None:
        if self.samples < 1 or self.surplus_samples < 0 or self.surplus_groups < 0:
            raise PolicyError(
                f"found samples={self.samples}, surplus_samples={self.surplus_samples} and "
                f"surplus_groups={self.surplus_groups}, expected at least 1, 0 and 0"
            )

    def open(self) -> InOrder:
        """The prompts of the stream in order, each once."""
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
        """The next prompt, with its surplus samples: always, as far as there is room."""
        return Launch(self._prompt, self._samples + self._surplus, self._samples)

    def launched(self, group: int, launch: Launch) -> None:  # noqa: ARG002 - the protocol's arguments
        """On to the prompt after it."""
        self._prompt = launch.prompt + 1

    def keeps(self, group: int, rewards: Sequence[float]) -> bool:  # noqa: ARG002 - the protocol's arguments
        """All groups, or those with a signal."""
        return not self._filters or len(set(rewards)) > 1

    def ended(self, group: int, end: GroupEnd) -> PromptFate:  # noqa: ARG002 - the protocol's arguments
        """Whatever became of the group, its prompt does not come again."""
        return PromptFate.DONE

    def state(self) -> dict[str, Any]:
        """The next prompt is all that changes."""
        return {"prompt": self._prompt}
