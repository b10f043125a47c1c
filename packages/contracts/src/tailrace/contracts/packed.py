"""Finished trajectories as they travel at size: what a batch is planned by, and tokens as packed bytes.

A rank of a trainer takes the outlines of a whole batch, plans as the other ranks do, and takes the tokens of its own rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.contracts.trajectory import FinishReason, SpanKind


@dataclass(frozen=True, slots=True)
class ExperienceOutline:
    """An `Experience` without its tokens.

    Args:
        trajectory: id of the trajectory.
        group: number of its group.
        prompt: a digest of its prompt; two prompts have the same one if their tokens are equal.
        prompt_tokens: number of prompt tokens.
        spans: (version, number of tokens, what they are) of each segment, in order.
        highest_token: the highest token id of prompt and response; -1 if there is none.
        finite: whether all log-probabilities are finite.
        finish, reward, completed_version, metadata: as in `Experience`.
    """

    trajectory: str
    group: int
    prompt: bytes
    prompt_tokens: int
    spans: tuple[tuple[int, int, SpanKind], ...]
    highest_token: int
    finite: bool
    finish: FinishReason
    reward: float | None
    completed_version: int | None
    metadata: dict[str, object] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Number of response tokens, observations among them."""
        return sum(count for _, count, _ in self.spans)


@dataclass(frozen=True, slots=True)
class PackedTokens:
    """The tokens of a trajectory, little-endian.

    Args:
        prompt: prompt token ids, 4 bytes each, unsigned; None if they were not asked for.
        tokens: response token ids, alike.
        logprobs: their log-probabilities: 4 bytes each (single precision) where that keeps all of them exactly, else 8 bytes.
    """

    prompt: bytes | None
    tokens: bytes
    logprobs: bytes

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return len(self.prompt or b"") + len(self.tokens) + len(self.logprobs)
