"""Axis batching: which prompts and how many samples are launched, and which groups are worth training on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from tailrace.contracts import (
    BatchingPolicy,
    BatchingSource,
    Facts,
    GroupEnd,
    Launch,
    Progress,
    PromptFate,
    Tried,
    same_rewards,
)
from tailrace.controller.errors import PolicyError

_LATER = 32  # launches before a prompt comes again, so that a sandbox or a judge has time to come back


@dataclass(frozen=True, slots=True)
class Redundant(BatchingPolicy):
    """Launches more samples or groups than needed and aborts the slowest (StaleFlow, section 4.3 and appendix C).

    This favours short responses, since the aborted ones take long. The report shows by how much.

    Args:
        samples: trajectories with which a group is trained.
        surplus_samples: further samples launched for each group, which is complete without the slowest (group level).
        surplus_groups: further groups generated for each batch, which is complete without the slowest (batch level).
        filter_equal_rewards: whether to filter groups whose rewards are all equal but for rounding, since they have no signal
            (DAPO's dynamic sampling).
        deferrals: how often a prompt whose group could not be scored comes again, later, before it is given up.
        seeded: whether each trajectory's noise follows from the run's seed, the prompt's place in the stream and its sample.
            The engine must keep seeds.

    Raises:
        PolicyError: a number is out of its range.
    """

    samples: int = 8
    surplus_samples: Annotated[int, Tried((0, 1, 2))] = 0
    surplus_groups: Annotated[int, Tried((0, 0, 1, 2))] = 0
    filter_equal_rewards: bool = False
    deferrals: int = 1
    seeded: bool = False

    def __post_init__(self) -> None:
        if self.samples < 1 or self.surplus_samples < 0 or self.surplus_groups < 0 or self.deferrals < 0:
            raise PolicyError(
                f"found samples={self.samples}, surplus_samples={self.surplus_samples}, "
                f"surplus_groups={self.surplus_groups} and deferrals={self.deferrals}, expected at least 1, 0, 0 and 0"
            )

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The run's samples of a prompt."""
        return {"samples": facts.samples}

    def draws_again(self) -> bool:
        """Whether an engine must keep the seeds of trajectories."""
        return self.seeded

    def open(self) -> StreamInOrder:
        """A source of the prompts in order, each once, but for those that could not be scored or were delayed."""
        return StreamInOrder(self)


@dataclass(frozen=True, slots=True)
class Plain(BatchingPolicy):
    """The next prompt of the stream, with as many samples as the algorithm needs. Plugin ``plain``.

    Args:
        samples: trajectories with which a group is trained.
        filter_equal_rewards: whether to filter groups whose rewards are all equal but for rounding (DAPO's dynamic sampling).
        deferrals: how often a prompt whose group could not be scored comes again, later, before it is given up.
        seeded: whether each trajectory's noise follows from the run's seed, the prompt's place and its sample; the engine must
            keep seeds.

    Raises:
        PolicyError: a number is out of its range.
    """

    samples: int = 8
    filter_equal_rewards: bool = False
    deferrals: int = 1
    seeded: bool = False

    def __post_init__(self) -> None:
        self._redundant()

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The run's samples of a prompt."""
        return {"samples": facts.samples}

    def draws_again(self) -> bool:
        """Whether an engine must keep the seeds of trajectories."""
        return self.seeded

    def open(self) -> StreamInOrder:
        """A source of the prompts in order, each once, but for those that could not be scored or were delayed."""
        return self._redundant().open()

    def _redundant(self) -> Redundant:
        return Redundant(self.samples, 0, 0, self.filter_equal_rewards, self.deferrals, self.seeded)


class StreamInOrder(BatchingSource):
    """One group for each prompt of the stream, in order, and again if it was not scored or delayed. See `BatchingSource`."""

    def __init__(self, policy: Redundant) -> None:
        self._samples, self._surplus = policy.samples, policy.surplus_samples
        self._filters, self._deferrals, self._seeded = policy.filter_equal_rewards, policy.deferrals, policy.seeded
        self._prompt = self._launched = 0
        self._open: dict[int, int] = {}  # prompt by group
        self._deferred: list[tuple[int, int]] = []  # prompts that come again, each from a number of launches on
        self._unscored: dict[int, int] = {}  # how often a prompt could not be scored

    def next(self, progress: Progress) -> Launch:  # noqa: ARG002 - the protocol's arguments
        """The next prompt with its samples, never None."""
        again = self._deferred and self._deferred[0][1] <= self._launched
        prompt = self._deferred[0][0] if again else self._prompt
        draw = prompt if self._seeded else None
        return Launch(prompt, self._samples + self._surplus, self._samples, draw=draw)

    def ahead(self, count: int) -> Sequence[int]:
        """What comes again first, since it is near, then the next prompts of the stream."""
        again = [prompt for prompt, _ in self._deferred[:count]]
        return [*again, *range(self._prompt, self._prompt + count - len(again))]

    def launched(self, group: int, launch: Launch) -> None:
        """Go to the next prompt."""
        if launch.prompt < self._prompt:
            del self._deferred[0]
        else:
            self._prompt = launch.prompt + 1
        self._launched += 1
        self._open[group] = launch.prompt

    def keeps(self, group: int, rewards: Sequence[float]) -> bool:  # noqa: ARG002 - the protocol's arguments
        """Whether the rewards differ, if the policy filters equal rewards; otherwise True."""
        return not self._filters or not same_rewards(rewards)

    def ended(self, group: int, end: GroupEnd) -> PromptFate:
        """A prompt that could not be scored comes again, a few times, and one that training waited for as often as it takes."""
        prompt = self._open.pop(group, None)
        if prompt is None:
            return PromptFate.DONE  # its launch failed, so it is nobody's
        if end is GroupEnd.DELAYED:
            self._deferred.append((prompt, self._launched + _LATER))
            return PromptFate.AGAIN
        tries = self._unscored.pop(prompt, 0)
        if end is not GroupEnd.UNSCORED or tries >= self._deferrals:
            return PromptFate.DONE
        self._unscored[prompt] = tries + 1
        self._deferred.append((prompt, self._launched + _LATER))
        return PromptFate.AGAIN

    def state(self) -> dict[str, Any]:
        """The next prompt, the open groups, and what comes again."""
        return {
            "prompt": self._prompt,
            "launched": self._launched,
            "open": {str(group): prompt for group, prompt in self._open.items()},
            "deferred": self._deferred,
            "unscored": {str(prompt): count for prompt, count in self._unscored.items()},
        }
