"""Tail batching: short rounds race more prompts than they keep, long rounds run those that lost (RollPacker, section 3).

                 queue shorter than a round                          queue as long as a round
    open ──► short: new prompts, more than it keeps      open ──► long: the head of the queue, waits for all
               first complete groups ──► trained                    all ──► trained
               the others ──► end of the queue

It is a state machine over prompts, without clock or I/O. The caller generates, and says which groups are complete. Each prompt
is trained on or filtered exactly once, however often it was launched.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, TypeVar

from tailrace.rollout.errors import RoundError

Take = Callable[[int], Sequence[int]]
"""Gives up to so many next prompts of the epoch; fewer only if the epoch has no more."""


@dataclass(frozen=True, slots=True)
class Round:
    """What to launch.

    Args:
        kind: a short round keeps the first groups to be complete, a long one waits for all.
        prompts: a group for each, in order of launch.
        samples: trajectories to launch for each.
        needed: trajectories that a group is trained with: its first to finish generating.
        size: groups that the round keeps. The batch is normalised by it.
    """

    kind: Literal["short", "long"]
    prompts: tuple[int, ...]
    samples: int
    needed: int
    size: int


class _Member(StrEnum):
    RUNNING = "running"
    COMPLETE = "complete"
    SURPLUS = "surplus"


class TailRounds:
    """Rounds over a stream of prompts.

    Args:
        prompts: groups of a batch (P0).
        samples: trajectories with which a group is trained (R0).
        prompt_factor: a short round launches so many times `prompts`, rounded up (speculation factor).
        sample_factor: a short round launches so many times `samples` for each, rounded up.
        epoch_end: what becomes of the queue when the epoch has too few prompts for a short round. ``"flush"``: the rest and
            the queue make long rounds, the last one smaller. ``"carry"``: a queue shorter than a round waits for the next
            epoch.
        source_of: the source of a prompt, where tasks are mixed. Each source races for its own share of the batch, since
            otherwise a short round would keep the quick task alone. None: one source.

    Raises:
        RoundError: a number is out of its range.
    """

    def __init__(
        self,
        prompts: int,
        samples: int,
        prompt_factor: float = 1.25,
        sample_factor: float = 1.25,
        *,
        epoch_end: Literal["flush", "carry"] = "flush",
        source_of: Callable[[int], Hashable] | None = None,
    ) -> None:
        if prompts < 1 or samples < 1:
            raise RoundError(f"found prompts={prompts} and samples={samples}, expected at least 1 of each")
        for name, factor in (("prompt_factor", prompt_factor), ("sample_factor", sample_factor)):
            if not (math.isfinite(factor) and factor >= 1):
                raise RoundError(f"found {name}={factor}, expected a finite number of at least 1")
        if epoch_end not in ("flush", "carry"):
            raise RoundError(f"found epoch_end={epoch_end!r}, expected 'flush' or 'carry'")
        self._numbers: dict[str, Any] = {
            "prompts": prompts, "samples": samples, "prompt_factor": prompt_factor, "sample_factor": sample_factor,
            "epoch_end": epoch_end,
        }  # fmt: skip
        self._prompts, self._samples, self._carries = prompts, samples, epoch_end == "carry"
        self._launched_prompts = launched(prompts, prompt_factor)
        self._launched_samples = launched(samples, sample_factor)
        self._source_of = source_of or (lambda _: None)
        self._queue: list[int] = []
        self._kind: Literal["short", "long"] | None = None
        self._members: dict[int, _Member] = {}  # of the open round, in order of launch
        self._size = 0
        self._shares: Counter[Hashable] = Counter()  # prompts that the round opened with, by source

    # ---- what it holds --------------------------------------------------------------------------------------------

    @property
    def queue(self) -> tuple[int, ...]:
        """Prompts that wait for a long round, first to come first."""
        return tuple(self._queue)

    @property
    def kind(self) -> Literal["short", "long"] | None:
        """The kind of the open round; None between rounds."""
        return self._kind

    @property
    def size(self) -> int:
        """Groups that the open round keeps. It is smaller than at the opening if the epoch could not replace a prompt."""
        return self._size

    @property
    def kept(self) -> tuple[int, ...]:
        """Prompts of the open round whose groups are complete, in order of launch."""
        return self._in(_Member.COMPLETE)

    @property
    def surplus(self) -> tuple[int, ...]:
        """Prompts of the open round that it does not need any more: abort their groups. `close` defers them."""
        return self._in(_Member.SURPLUS)

    @property
    def full(self) -> bool:
        """Whether nothing of the open round is awaited any more, so that it can be closed."""
        return self._kind is not None and _Member.RUNNING not in self._members.values()

    # ---- what happens ---------------------------------------------------------------------------------------------

    def open(self, take: Take) -> Round | None:
        """Open the next round.

        Returns:
            What to launch; None if the epoch is over.

        Raises:
            RoundError: a round is open.
        """
        if self._kind is not None:
            raise RoundError(f"found a {self._kind} round open, expected it to be closed first")
        prompts: Sequence[int] = ()
        if len(self._queue) < self._prompts:
            prompts = list(take(self._launched_prompts))
            if len(prompts) == self._launched_prompts:
                return self._opens("short", prompts, self._launched_samples, self._prompts)
            self._queue += prompts
            if not self._queue or (self._carries and len(self._queue) < self._prompts):
                return None
        prompts, self._queue = self._queue[: self._prompts], self._queue[self._prompts :]
        return self._opens("long", prompts, self._samples, len(prompts))

    def _opens(self, kind: Literal["short", "long"], prompts: Sequence[int], samples: int, size: int) -> Round:
        if len(set(prompts)) < len(prompts):
            raise RoundError(f"found the prompts {list(prompts)!r:.120}, expected each once")
        self._kind, self._size = kind, size
        self._members = dict.fromkeys(prompts, _Member.RUNNING)
        self._shares = Counter(map(self._source_of, prompts))
        return Round(kind, tuple(prompts), samples, self._samples, size)

    def completed(self, prompt: int) -> tuple[int, ...]:
        """Note that a prompt's group is complete and kept.

        Returns:
            Prompts that the round has just stopped needing: abort their groups. `close` defers them.

        Raises:
            RoundError: the prompt is not awaited.
        """
        self._require(prompt, _Member.RUNNING)
        self._members[prompt] = _Member.COMPLETE
        return self._settle()

    def filter(self, prompt: int, take: Take) -> tuple[int, ...]:
        """Note that a prompt is done without being trained on: filtered, or failed. It does not come again.

        Returns:
            Prompts to launch in its place: in a long round the next of the queue, otherwise of the epoch. Empty if there is
            none; then the round keeps fewer groups. Empty too if the round did not need it any more.

        Raises:
            RoundError: the prompt is not in the round.
        """
        self._require(prompt, *_Member)
        return self._replace(take) if self._members.pop(prompt) is not _Member.SURPLUS else ()

    def postpone(self, prompt: int, take: Take) -> tuple[int, ...]:
        """Note that a prompt could not be scored for now: it goes to the end of the queue. Returns as `filter` does."""
        replaced = self.filter(prompt, take)
        self._queue.append(prompt)
        return replaced

    def expired(self, prompts: Sequence[int], take: Take) -> tuple[int, ...]:
        """Note that groups are too old to be trained on, since the trainer fell back: their prompts go to the queue's head.

        They may be in the open round or in earlier ones. Returns as `filter` does.
        """
        self._queue[:0] = prompts
        awaited = (_Member.RUNNING, _Member.COMPLETE)
        gone = [prompt for prompt in prompts if self._members.pop(prompt, None) in awaited]
        return tuple(new for _ in gone for new in self._replace(take))

    def abandon(self, prompt: int) -> None:
        """Note that the group of a prompt in the open round was ended for no fault of its own; `close` defers it.

        Raises:
            RoundError: the prompt is not in the round.
        """
        self._require(prompt, *_Member)
        self._members[prompt] = _Member.SURPLUS
        self._settle()

    def close(self, trained: Iterable[int]) -> tuple[int, ...]:
        """Close the round.

        Args:
            trained: prompts that are trained on, usually `kept`.

        Returns:
            The prompts deferred to the end of the queue, in order of launch. A long round defers none, but for those that
            were abandoned.

        Raises:
            RoundError: no round is open; a prompt is not in it; more are trained on than it keeps; or a long round lacks one.
        """
        done = set(trained)
        if self._kind is None:
            raise RoundError("found no open round, expected one to close")
        if not done <= self._members.keys() or len(done) > self._size:
            raise RoundError(
                f"found {len(done)} prompts trained on, {sorted(done - self._members.keys())!r:.80} of them not in the round, "
                f"expected at most {self._size} of its own"
            )
        late = [prompt for prompt in self._members if prompt not in done]
        missing = [prompt for prompt in late if self._members[prompt] is _Member.RUNNING]
        if self._kind == "long" and missing:
            raise RoundError(f"found a long round without {missing!r:.80}, expected it to wait for all")
        self._queue += late
        self._kind, self._members, self._size = None, {}, 0
        return tuple(late)

    # ---- state ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """The whole state as plain data that JSON can carry, also in the middle of a round."""
        return {
            **self._numbers,
            "queue": list(self._queue),
            "kind": self._kind,
            "size": self._size,
            "members": [[prompt, str(at)] for prompt, at in self._members.items()],
            "shares": [[source, count] for source, count in self._shares.items()],
        }

    @classmethod
    def restore(cls, state: dict[str, Any], *, source_of: Callable[[int], Hashable] | None = None) -> TailRounds:
        """The rounds of a state.

        Args:
            state: what `state` gave.
            source_of: as it was given to the rounds that had the state.

        Raises:
            RoundError: the state is not one of `state`.
        """
        try:
            names = ("prompts", "samples", "prompt_factor", "sample_factor", "epoch_end")
            rounds = cls(**{name: state[name] for name in names}, source_of=source_of)
            rounds._queue, rounds._kind, rounds._size = list(state["queue"]), state["kind"], state["size"]
            rounds._members = {prompt: _Member(at) for prompt, at in state["members"]}
            rounds._shares = Counter(dict(state["shares"]))
        except (KeyError, TypeError, ValueError) as error:
            raise RoundError(
                f"found a state that cannot be read ({error!r}), expected one that `state` gave"
            ) from error
        return rounds

    # ---- helpers --------------------------------------------------------------------------------------------------

    def _in(self, *states: _Member) -> tuple[int, ...]:
        return tuple(prompt for prompt, at in self._members.items() if at in states)

    def _require(self, prompt: int, *states: _Member) -> None:
        found = self._members.get(prompt)
        if found not in states:
            raise RoundError(
                f"found prompt {prompt} {'not in the open round' if found is None else found}, expected it "
                f"{' or '.join(states)}"
            )

    def _replace(self, take: Take) -> tuple[int, ...]:
        """Launch one prompt in the place of one that has left the round."""
        if self._kind == "long" and self._queue:
            new = self._queue[:1]
            del self._queue[0]
        else:
            new = list(take(1))
        self._members.update(dict.fromkeys(new, _Member.RUNNING))
        self._settle()
        return tuple(new)

    def _settle(self) -> tuple[int, ...]:
        """Fit the round to what is left of it. Returns prompts that have just become surplus."""
        running, complete = self._in(_Member.RUNNING), self._in(_Member.COMPLETE)
        self._size = min(self._size, len(running) + len(complete))
        awaited, done = Counter(map(self._source_of, running)), Counter(map(self._source_of, complete))
        share = quotas(self._size, self._shares, done, done + awaited)
        late = tuple(prompt for prompt in running if done[self._source_of(prompt)] >= share[self._source_of(prompt)])
        self._members.update(dict.fromkeys(late, _Member.SURPLUS))
        return late


def launched(count: int, factor: float) -> int:
    """How many are launched to keep `count`: factor x count, rounded up."""
    return math.ceil(count * factor - 1e-9)


_Part = TypeVar("_Part", bound=Hashable)


def quotas(
    size: int, shares: Mapping[_Part, int], least: Mapping[_Part, int], most: Mapping[_Part, int]
) -> dict[_Part, int]:
    """Whole parts of `size`, as near to the shares as their limits allow.

    Each part is raised by one, where it is furthest below its exact share, until the parts add up to `size`.

    Args:
        size: the sum of the parts, if `least` and `most` allow it.
        shares: the share of each source, relative to those of the others.
        least: least part of each source, 0 if it is not there.
        most: largest part of each source; only those have a part.
    """
    parts = {source: least.get(source, 0) for source in most}
    total = sum(shares.get(source, 0) for source in most) or 1
    while sum(parts.values()) < size:
        below = [source for source in most if parts[source] < most[source]]
        if not below:
            break
        furthest = max(below, key=lambda source: size * shares.get(source, 0) / total - parts[source])
        parts[furthest] += 1
    return parts
