"""Axis batching: tail batching (RollPacker, section 3). `tailrace.rollout.TailRounds` decides; this speaks for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from tailrace.contracts import (
    BatchingPolicy,
    BatchingSource,
    Facts,
    GroupEnd,
    Launch,
    Progress,
    PromptFate,
    RoundView,
    Tried,
    same_rewards,
)
from tailrace.controller.errors import PolicyError
from tailrace.rollout import RoundError, TailRounds
from tailrace.trajstore import MixOrder


@dataclass(frozen=True, slots=True)
class TailBatching(BatchingPolicy):
    """Short rounds keep the first groups to be complete of more than they need; the prompts of the others come again in long
    rounds, which wait for all. Each round is one batch, and every prompt is trained on.

    What remains is a bias within groups, if `sample_factor` is above 1, and a second chance for prompts that were late, if
    `redraw` is ``"fresh"``: both favour short responses.

    Args:
        prompts: groups of a batch.
        samples: trajectories with which a group is trained.
        prompt_factor: a short round launches so many times `prompts` (speculation factor).
        sample_factor: a short round launches so many times `samples` for each prompt.
        redraw: ``"fresh"``: a prompt that comes again gets new noise. ``"same-noise"``: it gets the seeds of its first attempt,
            so that being late is no second chance; the engine must keep seeds.
        epoch_prompts: prompts of an epoch; 0: the stream has no end.
        epoch_end: ``"flush"``: long rounds empty the queue at the end of an epoch, the last one smaller; ``"carry"``: a queue
            shorter than a round waits for the next epoch.
        filter_equal_rewards: whether to filter groups whose rewards are all equal but for rounding (DAPO's dynamic sampling).
            The next prompt takes their place.
        deferrals: how often a prompt whose group could not be scored comes again before it is given up.
        shares: the share of each source of prompts. Each races for its own share of a short round.
        shuffle_seed: the seed with which the sources are mixed.

    Raises:
        PolicyError: an option is out of its range.
    """

    prompts: int = 128
    samples: int = 8
    prompt_factor: Annotated[float, Tried((1.0, 1.25, 2.0))] = 1.25
    sample_factor: Annotated[float, Tried((1.0, 1.25, 1.5))] = 1.25
    redraw: Annotated[Literal["fresh", "same-noise"], Tried(("fresh", "same-noise"))] = "same-noise"
    epoch_prompts: Annotated[int, Tried((0, 0, 7, 40))] = 0
    epoch_end: Annotated[Literal["flush", "carry"], Tried(("flush", "carry"))] = "flush"
    filter_equal_rewards: bool = False
    deferrals: int = 1
    shares: Annotated[tuple[float, ...], Tried(([1.0], [1.0], [1.0, 3.0]))] = (1.0,)
    shuffle_seed: int | None = None

    def __post_init__(self) -> None:
        if self.epoch_prompts < 0 or self.deferrals < 0:
            raise PolicyError(
                f"found epoch_prompts={self.epoch_prompts} and deferrals={self.deferrals}, expected at least 0"
            )
        if self.redraw not in ("fresh", "same-noise"):
            raise PolicyError(f"found redraw={self.redraw!r}, expected 'fresh' or 'same-noise'")
        if not self.shares or not all(share > 0 for share in self.shares):
            raise PolicyError(f"found shares={self.shares}, expected a share above 0 for each source")
        try:
            self.rounds()
        except RoundError as error:
            raise PolicyError(str(error)) from error

    @classmethod
    def options_from(cls, facts: Facts) -> dict[str, object]:
        """The run's batch and its sources of prompts."""
        return {
            "prompts": facts.prompts,
            "samples": facts.samples,
            "shares": facts.shares,
            "shuffle_seed": facts.shuffle_seed,
        }

    def draws_again(self) -> bool:
        """Whether an engine must keep the seeds of trajectories."""
        return self.redraw == "same-noise"

    def rounds(self) -> TailRounds:
        """The state machine, at the beginning."""
        order = MixOrder(self.shares, shuffle_seed=self.shuffle_seed)
        return TailRounds(
            self.prompts,
            self.samples,
            self.prompt_factor,
            self.sample_factor,
            epoch_end=self.epoch_end,
            source_of=order.pool,
        )

    def open(self) -> InRounds:
        """A source at the beginning of the prompt stream, with its first round open."""
        return InRounds(self)


class InRounds(BatchingSource):
    """One batch after the other as short and long rounds. See `BatchingSource`.

    The next round opens as soon as nothing of the last one is awaited. Admission says when its groups may start.
    """

    def __init__(self, policy: TailBatching) -> None:
        self._policy, self._rounds = policy, policy.rounds()
        self._epoch_end = policy.epoch_prompts or None  # the first prompt of the next epoch
        self._prompt = 0  # the next one of the stream
        self._number = -1
        self._pending: list[int] = []  # prompts of the open round that have no group yet, in order
        self._samples = self._begun = 0
        self._prompt_of: dict[int, tuple[int, int]] = {}  # prompt and round of each open group
        self._running: set[int] = set()  # groups of the open round that are not complete
        self._unscored: dict[int, int] = {}  # how often a prompt could not be scored
        self._open()

    # ---- rounds ---------------------------------------------------------------------------------------------------

    def launches_rounds(self) -> bool:
        """Short and long rounds are launched whole."""
        return True

    def open_round(self) -> RoundView | None:
        """The open round, once one of its groups was launched."""
        if not self._begun:
            return None
        rounds, samples = self._rounds, self._policy.samples
        assert rounds.kind is not None
        return RoundView(self._number, rounds.kind, rounds.size, len(rounds.kept), rounds.size * samples, 0)

    def unlaunched(self) -> int:
        """Groups that the open round has not launched yet."""
        return len(self._pending)

    def completed(self, group: int) -> None:
        """Note that a group is complete and kept."""
        prompt, number = self._prompt_of[group]
        if number == self._number:
            self._running.discard(group)
            self._rounds.completed(prompt)
            self._settle()

    def surplus(self) -> Sequence[int]:
        """Groups of the open round that it does not need any more."""
        late = set(self._rounds.surplus)
        return [group for group in sorted(self._running) if self._prompt_of[group][0] in late] if late else ()

    def _open(self) -> None:
        """Open the next round, of the next epoch if this one is over."""
        opened = self._rounds.open(self._take)
        while opened is None:  # at most once for each epoch, which has at least one prompt
            assert self._epoch_end is not None
            self._epoch_end += self._policy.epoch_prompts
            opened = self._rounds.open(self._take)
        self._number += 1
        self._pending, self._samples, self._begun = list(opened.prompts), opened.samples, 0

    def _settle(self) -> None:
        """Launch nothing that the round does not need any more, and go on to the next round if nothing is awaited."""
        late = set(self._rounds.surplus)
        self._pending = [waiting for waiting in self._pending if waiting not in late]
        if self._rounds.full and not self._running:
            self._rounds.close(self._rounds.kept)
            self._open()

    def _take(self, count: int) -> Sequence[int]:
        end = self._prompt + count if self._epoch_end is None else min(self._prompt + count, self._epoch_end)
        new = list(range(self._prompt, end))
        self._prompt = end
        return new

    # ---- groups ---------------------------------------------------------------------------------------------------

    def next(self, progress: Progress) -> Launch | None:  # noqa: ARG002 - the protocol's arguments
        """The next prompt of the open round; None once all are launched."""
        if not self._pending:
            return None
        prompt, policy, kind = self._pending[0], self._policy, self._rounds.kind
        assert kind is not None
        draw = prompt if policy.draws_again() else None
        return Launch(prompt, self._samples, policy.samples, self._number, kind, draw)

    def ahead(self, count: int) -> Sequence[int]:
        """What the open round has not launched yet, then the next prompts of the stream; a long round's were named before."""
        pending = self._pending[:count]
        return [*pending, *range(self._prompt, self._prompt + count - len(pending))]

    def launched(self, group: int, launch: Launch) -> None:
        """Note the group of a prompt of the open round."""
        del self._pending[0]
        self._begun += 1
        self._prompt_of[group] = launch.prompt, self._number
        self._running.add(group)

    def keeps(self, group: int, rewards: Sequence[float]) -> bool:  # noqa: ARG002 - the protocol's arguments
        """Whether the rewards differ, if the policy filters equal rewards; otherwise True."""
        return not self._policy.filter_equal_rewards or not same_rewards(rewards)

    def ended(self, group: int, end: GroupEnd) -> PromptFate:
        """A prompt that was trained on, filtered or refused is done; any other comes again."""
        found = self._prompt_of.pop(group, None)
        if found is None:
            return PromptFate.DONE  # its launch failed, so it is nobody's
        prompt, number = found
        self._running.discard(group)
        fate = self._fate(prompt, end)
        here = number == self._number
        if end is GroupEnd.EXPIRED:
            self._pending += self._rounds.expired((prompt,), self._take)
        elif here and end is GroupEnd.SURPLUS:
            self._rounds.abandon(prompt)
        elif here and fate is PromptFate.AGAIN:
            self._pending += self._rounds.postpone(prompt, self._take)
        elif here and end is not GroupEnd.TRAINED:
            self._pending += self._rounds.filter(prompt, self._take)
        elif fate is PromptFate.AGAIN:  # its round is over: the run ended before it was trained on, and may be resumed
            self._rounds.expired((prompt,), self._take)
        if here:
            self._settle()
        return fate

    def _fate(self, prompt: int, end: GroupEnd) -> PromptFate:
        tries = self._unscored.pop(prompt, 0)
        if end is GroupEnd.UNSCORED and tries < self._policy.deferrals:
            self._unscored[prompt] = tries + 1
            return PromptFate.AGAIN
        return PromptFate.AGAIN if end in (GroupEnd.SURPLUS, GroupEnd.EXPIRED, GroupEnd.DELAYED) else PromptFate.DONE

    def state(self) -> dict[str, Any]:
        """The rounds, what waits to be launched, and the open groups."""
        return {
            "rounds": self._rounds.state(),
            "number": self._number,
            "begun": self._begun,
            "samples": self._samples,
            "next": self._prompt,
            "epoch_end": self._epoch_end,
            "pending": self._pending,
            "groups": {str(group): list(where) for group, where in self._prompt_of.items()},
            "running": sorted(self._running),
            "unscored": {str(prompt): count for prompt, count in self._unscored.items()},
        }
