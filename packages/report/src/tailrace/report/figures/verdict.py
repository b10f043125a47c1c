"""The three answers that come first: whether it was good, what limited its speed, what to change. Pure.

The limit is read off the shares of time of trainer and replicas, step by step, so that each share has a standard error.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from tailrace.contracts import Why, same_rewards
from tailrace.controller.members import REPLICA, TRAINER
from tailrace.pipeline.run.figures.batches import mean, standard_error
from tailrace.report.figures.system import Utilisation, utilisation
from tailrace.report.fold.timeline import Span
from tailrace.report.reason_words import WAITS, percent

BUSY = 0.85
"""Who works for so much of the time limits the speed."""
MOST_STEPS = 32
FEWEST_STEPS = 2
CUT = 0.5  # of the responses: so many cut by a limit explain that nothing was right
FEWEST_GROUPS, MANY, HALF = 8, 0.9, 0.5
LAST = 4  # batches that are looked at for a signal

_TRAINER_BEHIND = (
    "Give the trainer more devices or smaller batches, or take replicas away: these do not limit the speed."
)
_BALANCED = "Give trainer and replicas more devices: either of them alone would soon wait for the other."
_MORE_GENERATION = (
    "Add replicas, raise pipeline.prompts_per_replica if the KV cache has room, or let trajectories start earlier."
)
_CHANGES = {
    WAITS[Why.BUFFER_FULL]: _TRAINER_BEHIND,
    WAITS[Why.POOL_EMPTY]: _TRAINER_BEHIND,
    WAITS[Why.ELSEWHERE]: "A few long responses hold the batch: look at repacking (relocation) and redundant batching.",
    WAITS[Why.NOT_ADMITTED]: "Raise the bound on staleness (admission), or publish weights sooner.",
    WAITS[Why.NOT_TOLD]: "Let replicas pull sooner (sync): they wait with old weights.",
    WAITS[Why.NO_USE]: "Raise the bound on staleness (admission): newer weights would bring no work yet.",
    WAITS[Why.UNPUBLISHED]: "Nothing yet: the first weights are on their way.",
    WAITS[Why.SCORING]: "Add scorers or reward workers: rewards are what is waited for.",
    WAITS[
        Why.IN_ENVIRONMENTS
    ]: "Add members of the environment, or more trajectories for each replica: turns are waited for.",
    WAITS[Why.FIRST_BATCH]: "Nothing yet: the first batch is being generated.",
    WAITS[Why.ADMITTED]: "Nothing: the run is near its end, and there is no prompt left to start.",
    WAITS[Why.NO_BATCH]: _MORE_GENERATION,
    WAITS[
        Why.HELD_FOR_LATER
    ]: "A few long responses hold the oldest batch: look at repacking (relocation) and redundant batching.",
    WAITS[Why.NEXT_NOT_STARTED]: _MORE_GENERATION,
    "pulling weights": "Pull weights in less time: more relays, or fewer pulls (sync).",
    "starting or restarting": "Look at what dies: members spend their time starting.",
    "down": "Look at what dies: members are down.",
}


@dataclass(frozen=True, slots=True)
class BusyShare:
    """A share of time, 0 to 1, over steps; `error` is its standard error over them, None for fewer than two."""

    value: float
    error: float | None
    steps: int

    def __str__(self) -> str:
        around = "" if self.error is None else f" ± {100 * self.error:.1f}"
        return f"{percent(self.value)[:-2]}{around} %"


@dataclass(frozen=True, slots=True)
class Limit:
    """What limits the speed.

    Args:
        said: it, in one sentence.
        change: what to change, in one sentence; empty where nothing is known yet.
        trainer, replicas: how much of their time they work; None before there are steps.
        cause: what whoever waits most waits for.
    """

    said: str
    change: str = ""
    trainer: BusyShare | None = None
    replicas: BusyShare | None = None
    cause: str = ""


def limit(spans: Sequence[Span], step_ends_s: Sequence[float]) -> Limit:
    """What limits the speed of a run.

    Args:
        spans: the timeline.
        step_ends_s: when each step ended, rising; time between the first and the last is looked at, of 32 steps at most.
    """
    ends = list(step_ends_s)[-MOST_STEPS - 1 :]
    if len(ends) < FEWEST_STEPS:
        return Limit(f"Not known yet: it takes {FEWEST_STEPS} steps to tell.")
    seen = [span for span in spans if span.end_s > ends[0]]
    parts = zip(_by_step(seen, ends), pairwise(ends), strict=True)
    steps = [{row.role: row for row in utilisation(part, *pair)} for part, pair in parts]
    whole = {row.role: row for row in utilisation(seen, ends[0], ends[-1])}
    trainer, replicas = (_share(role, steps) for role in (TRAINER, REPLICA))
    if trainer is None or replicas is None:
        return Limit("Not known: the log has no trainer or no replica at work.", trainer=trainer, replicas=replicas)
    both = f"trainer {trainer} busy, replicas {replicas}, over {len(steps)} step{'s' if len(steps) > 1 else ''}"
    if min(trainer.value, replicas.value) >= BUSY:
        said, change, cause = "Training and generation limit the speed alike; neither waits for long", _BALANCED, ""
    elif trainer.value >= BUSY:
        said, change, cause = "Training limits the speed; more replicas will not help", _TRAINER_BEHIND, ""
    elif replicas.value >= BUSY:
        said, change, cause = "Generation limits the speed; the trainer waits", _MORE_GENERATION, _cause(whole[TRAINER])
    else:
        more = max(whole.values(), key=lambda row: row.idle + row.pulling + row.out)
        cause = _cause(more)
        who = "the trainer waits" if more.role == TRAINER else "replicas wait"
        said = f"Neither trainer nor replicas are busy all the time; {who} most ({cause})"
        change = _CHANGES.get(cause, "Look at what it waits for in the timeline.")
    return Limit(f"{said}: {both}.", change, trainer, replicas, cause)


def _by_step(spans: Sequence[Span], ends_s: Sequence[float]) -> list[list[Span]]:
    """The spans that each step has a part of, in their order."""
    parts: list[list[Span]] = [[] for _ in ends_s[1:]]
    for span in spans:
        first = max(0, bisect_right(ends_s, span.start_s) - 1)
        for part in parts[first : bisect_left(ends_s, span.end_s)]:
            part.append(span)
    return parts


def _share(role: str, steps: Sequence[dict[str, Utilisation]]) -> BusyShare | None:
    shares = [rows[role].busy for rows in steps if role in rows]
    if not shares:
        return None
    return BusyShare(mean(shares), standard_error(shares) if len(shares) > 1 else None, len(shares))


def _cause(row: Utilisation) -> str:
    return row.bubbles[0][0] if row.bubbles else "nothing in particular"


def answers(good: str, limit: Limit, first: str = "") -> list[tuple[str, str]]:
    """The three questions that every screen answers first, and their answers.

    Args:
        good: whether it was good, in a sentence.
        first: what must be seen to before the speed, in a sentence; empty for nothing.
    """
    change = f"See to this first: {first}" if first else limit.change or "Nothing that is known."
    return [("Was it good?", good), ("What limits its speed?", limit.said), ("What to change?", change)]


class ScoredResponse(Protocol):
    """A trajectory of a batch."""

    @property
    def prompt(self) -> int:
        """Its prompt."""

    @property
    def reward(self) -> float | None:
        """Its reward, if it has one."""

    @property
    def truncated(self) -> bool:
        """Whether a limit ended it."""


@dataclass(frozen=True, slots=True)
class Signal:
    """What batches had to learn from.

    Args:
        groups: groups that were trained on, with rewards.
        equal: those of them whose rewards are all the same.
        reward: the mean reward; None for none.
        error: its standard error, clustered by prompt.
        cut: share of the responses that a limit ended.
    """

    groups: int
    equal: int
    reward: float | None
    error: float
    cut: float

    @classmethod
    def of(cls, members: Sequence[ScoredResponse]) -> Signal:
        """The signal of a batch."""
        by_prompt: dict[int, list[float]] = {}
        for member in members:
            if member.reward is not None:
                by_prompt.setdefault(member.prompt, []).append(member.reward)
        groups = [rewards for rewards in by_prompt.values() if len(rewards) > 1]
        rewards = [reward for group in by_prompt.values() for reward in group]
        clusters = [prompt for prompt, group in by_prompt.items() for _ in group]
        return cls(
            len(groups),
            sum(same_rewards(group) for group in groups),
            mean(rewards) if rewards else None,
            standard_error(rewards, clusters),
            mean([float(member.truncated) for member in members]),
        )


def without_signal(signals: Mapping[int, Signal]) -> str:
    """What is said where hardly anything can be learned from the last batches, with what to change; empty if that is not so.

    Args:
        signals: of each batch, by the version that it makes.
    """
    last = [signals[version] for version in sorted(signals)[-LAST:]]
    groups, equal = sum(each.groups for each in last), sum(each.equal for each in last)
    if groups < FEWEST_GROUPS or equal < MANY * groups:
        return ""
    average = mean([each.reward for each in last if each.reward is not None])
    cut = mean([each.cut for each in last])
    said = f"{equal:,} of the last {groups:,} groups had the same reward for each response ({average:.3g} on average)"
    if cut >= CUT:
        return f"{said}, and a limit cut {percent(cut)} of the responses: raise rollout.max_tokens."
    hint = "a longer warm start, easier prompts" if average <= HALF else "harder prompts"
    return f"{said}: nothing can be learned from them. Try {hint} or more samples to a prompt."
