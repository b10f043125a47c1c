"""Trajectories: what a replica generates, a scorer rewards and a trainer consumes.

Invariant: each token of a trajectory has its log-probability and its version, also after interruption, moves and resumption.
A `Segment` whose lengths differ cannot be built.

The response of a trajectory with several turns is one sequence of tokens: what the model generated, and in between what an
environment answered (*observations*). Lengths, offsets and limits count both, since both fill the context. What is measured or
trained per token counts generated tokens alone.

An episode whose agent forks, asks a sub-agent or rewrites its history has several *contexts* in one response. A *fresh*
observation begins one: it is all that the model reads before the tokens behind it, and nothing before it is seen from there.
What of it an earlier context begins with, too, is repeated: limits do not count that again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from tailrace.contracts.record import record


class Purpose(StrEnum):
    """Why a trajectory is generated."""

    TRAIN = "train"
    EVAL = "eval"


class FinishReason(StrEnum):
    """Why generation of a trajectory ended."""

    STOP = "stop"
    LENGTH = "length"


class SpanKind(IntEnum):
    """What the tokens of a segment are; true of what the model did not generate."""

    GENERATED = 0
    OBSERVATION = 1
    FRESH = 2


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of response tokens that one weight version produced, or that an environment answered.

    Args:
        version: the weight version; of an observation, that of the segment before it.
        tokens: token ids, in order.
        logprobs: the behaviour policy's log-probability of each token (natural log), same length as `tokens`; of an
            observation, 0.0 each.
        observation: whether an environment answered these tokens. They are context, and are not trained on.
        fresh: whether the observation begins a context: tokens behind it follow it alone, and neither the prompt nor what
            came before.

    Raises:
        ValueError: the lengths differ, an observation has a log-probability other than 0.0, or a fresh segment is none.
    """

    version: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    observation: bool = False
    fresh: bool = False

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"a segment of {len(self.tokens)} tokens came with {len(self.logprobs)} log-probabilities")
        if self.observation and any(self.logprobs):
            raise ValueError(
                f"an observation of {len(self.tokens)} tokens came with log-probabilities, expected 0.0 for each: "
                "no policy drew them"
            )
        if self.fresh and not self.observation:
            raise ValueError(
                f"found a fresh segment of {len(self.tokens)} generated tokens, expected an observation: a context begins "
                "with what the model reads"
            )

    @property
    def kind(self) -> SpanKind:
        """What its tokens are."""
        if self.fresh:
            return SpanKind.FRESH
        return SpanKind.OBSERVATION if self.observation else SpanKind.GENERATED


@dataclass(frozen=True, slots=True)
class PartialDelta:
    """New response tokens of one trajectory, on their way from a replica to the store.

    Args:
        trajectory: its id.
        offset: response tokens before these.
        version: the weight version that produced them.
        tokens: token ids, in order.
        logprobs: the behaviour policy's log-probability of each token (natural log), same length as `tokens`.
        finish: set with the last tokens: the response is complete.
        turn_ends: set with the last tokens of a turn that an environment answers: no token follows before its observation.

    Raises:
        ValueError: the lengths differ, the offset is negative, or the delta ends both a turn and the response.
    """

    trajectory: str
    offset: int
    version: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: FinishReason | None = None
    turn_ends: bool = False

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(
                f"trajectory {self.trajectory}: found {len(self.tokens)} tokens and {len(self.logprobs)} "
                "log-probabilities, expected one for each token"
            )
        if self.offset < 0:
            raise ValueError(f"trajectory {self.trajectory}: found offset {self.offset}, expected at least 0")
        if self.turn_ends and self.finish is not None:
            raise ValueError(
                f"trajectory {self.trajectory}: found the end of a turn and of the response ({self.finish}) in one delta, "
                "expected one of them: after the response no environment is asked"
            )


@dataclass(frozen=True, slots=True)
class Resume:
    """The existing tokens of a trajectory that a replica starts or resumes.

    Args:
        trajectory: its id.
        prompt_tokens: prompt token ids.
        kept_tokens: response token ids that exist already; generation continues after them.
        kept_logprobs: the behaviour policy's log-probability (natural log) of each.
        complete: whether the response is complete, so that no token is left to generate.
        turn_ended: whether the last turn has ended and its environment has not answered, so that no token may follow yet.
        context: where the present context begins among the kept tokens: generation follows those from there on alone; 0 where
            it follows the prompt and all of them.
        repeated: kept tokens that limits do not count: see `repeated_tokens`.
    """

    trajectory: str
    prompt_tokens: tuple[int, ...]
    kept_tokens: tuple[int, ...] = ()
    kept_logprobs: tuple[float, ...] = ()
    complete: bool = False
    turn_ended: bool = False
    context: int = 0
    repeated: int = 0


@record
class TrajectoryRef:
    """A trajectory as the controller knows it: metadata only.

    Args:
        trajectory: unique id within the run, for example ``"12.3"`` (group 12, sample 3).
        group: number of the group; for an evaluation, the index of the problem.
        sample: index within the group, from 0.
        purpose: training or evaluation.
        mode: the evaluation's decoding mode (``"sampled"``, ``"greedy"``, ...); empty for training.
        kept: number of response tokens in the partial-response pool, from which generation resumes.
        prompt: index in the prompt stream; for an evaluation, index of the problem.
        draw: with the run's seed and the sample, the seed of its noise; None leaves the noise to the engine.
    """

    trajectory: str
    group: int
    sample: int
    purpose: Purpose = Purpose.TRAIN
    mode: str = ""
    kept: int = 0
    prompt: int = 0
    draw: int | None = None


@dataclass(frozen=True, slots=True)
class Experience:
    """A finished trajectory with its data: what a scorer reads and a trainer trains on.

    Args:
        trajectory: id of the trajectory.
        group: number of the group; advantages are normalised within it.
        prompt: prompt token ids.
        segments: response tokens with their versions, in order; observations of an environment among them.
        finish: why generation ended.
        reward: the verifier's reward, None before scoring.
        completed_version: the trainer's version when generation finished (inherent staleness M - K, Laminar section 6).
    """

    trajectory: str
    group: int
    prompt: tuple[int, ...]
    segments: tuple[Segment, ...]
    finish: FinishReason = FinishReason.STOP
    reward: float | None = None
    completed_version: int | None = None
    metadata: dict[str, object] = field(default_factory=dict, compare=False)

    @property
    def tokens(self) -> tuple[int, ...]:
        """All response token ids."""
        return tuple(token for segment in self.segments for token in segment.tokens)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The behaviour log-probability of every response token; 0.0 of those that an environment answered."""
        return tuple(value for segment in self.segments for value in segment.logprobs)

    @property
    def spans(self) -> tuple[tuple[int, int, SpanKind], ...]:
        """The version of each segment, its number of tokens, and what they are."""
        return tuple([(segment.version, len(segment.tokens), segment.kind) for segment in self.segments])

    @property
    def contexts(self) -> tuple[tuple[int, int, int], ...]:
        """The contexts in which the model generated, in order: see `contexts_of`."""
        return contexts_of(self.spans)

    @property
    def generated(self) -> tuple[bool, ...]:
        """Whether the model generated each response token; otherwise an environment answered it."""
        return tuple(not observation for _, count, observation in self.spans for _ in range(count))

    @property
    def generated_tokens(self) -> int:
        """Number of response tokens that the model generated: those that are trained on."""
        return sum(count for _, count, observation in self.spans if not observation)

    @property
    def turns(self) -> int:
        """Number of turns: runs of generated tokens, which observations separate."""
        kinds = [observation for _, count, observation in self.spans if count]
        return sum(not kind and (not index or kinds[index - 1]) for index, kind in enumerate(kinds))

    @property
    def last_turn(self) -> tuple[int, ...]:
        """The tokens of the last turn: those that the model generated behind the last observation before them."""
        found: tuple[int, ...] = ()
        for segment in reversed([segment for segment in self.segments if segment.tokens]):
            if segment.observation and found:
                break
            found = found if segment.observation else segment.tokens + found
        return found

    @property
    def oldest_version(self) -> int:
        """The oldest version that generated a token: staleness is counted from it."""
        return min((version for version, _, observation in self.spans if not observation), default=0)

    @property
    def newest_version(self) -> int:
        """The newest version that generated a token."""
        return max((version for version, _, observation in self.spans if not observation), default=0)


def contexts_of(spans: Iterable[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Where the contexts of a response lie in it: each generated token is in one of them.

    Args:
        spans: as in `Experience.spans`.

    Returns:
        Of each context that has a generated token: where it begins among the response's tokens, where the tokens behind what it
        began with do, and where it ends behind its last generated token. The first one begins with the prompt, which is not
        among the response's tokens: its first two numbers are 0.
    """
    found, start, begun, end, place = [], 0, 0, 0, 0
    for _, count, kind in spans:
        if kind == SpanKind.FRESH and count:
            if end > begun:
                found.append((start, begun, end))
            start, begun = place, place + count
        place += count
        if kind == SpanKind.GENERATED and count:
            end = place
    if end > begun:
        found.append((start, begun, end))
    return tuple(found)


def repeated_tokens(prompt: Sequence[int], parts: Iterable[tuple[Sequence[int], int]]) -> int:
    """Number of response tokens with which contexts repeat the beginning of an earlier one, such as the prompt.

    Each context is compared with all before it, the first of which begins with the prompt; the longest beginning counts. So no
    context has more tokens than the prompt and all response tokens that are not repeated.

    Args:
        prompt: prompt token ids.
        parts: token ids of the response, in order, each with what they are (`SpanKind`).
    """
    contexts, found = [list(prompt)], 0
    for tokens, kind in parts:
        if kind == SpanKind.FRESH:
            found += max(_alike(list(tokens), known) for known in contexts)
            contexts.append([])
        contexts[-1] += tokens
    return found


def _alike(first: list[int], second: list[int]) -> int:
    """The number of equal items with which both begin."""
    low, high = 0, min(len(first), len(second))
    while low < high:  # whole slices are compared much faster than items
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low


_RELATIVE = 2.0**-21
"""Four units in the last place of single precision, in which reward models compute: 1,000,000 and 1,000,001 differ."""

_ABSOLUTE = 1e-9
"""Rounding of sums that come out at 0, as 0.1 + 0.2 - 0.3 does."""


def same_rewards(rewards: Iterable[float]) -> bool:
    """Whether rewards are all equal but for rounding: the one notion of it, in advantages, filters, samplers and accuracy.

    Equal are none, one, or several of which the least and the greatest differ by at most 2 ** -21 of the larger magnitude, or
    by at most 1e-9.

    Args:
        rewards: finite numbers.
    """
    values = list(rewards)
    if not values:
        return True
    low, high = min(values), max(values)
    return low == high or high - low <= max(_ABSOLUTE, _RELATIVE * max(abs(low), abs(high)))
