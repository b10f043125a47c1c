"""How responses are laid out for the forward passes: rows, ranks, micro-batches. Plain Python, no torch.

A row is one prompt followed by one or more responses to it. Samples of a group share their prompt, so a row of several
responses computes it once; a mask and restarted positions keep the responses from seeing one another. Any layout gives
the same gradient (`advantages.token_weights`); this one is chosen for speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sample:
    """A response to train on.

    Args:
        prompt: token ids.
        response: token ids, at least one.
        weight: of each of its tokens in the loss.
        behaviour: log-probability of each token when it was drawn; empty for supervised samples.
        advantage: of the response.
    """

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    weight: float
    behaviour: tuple[float, ...] = ()
    advantage: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and the responses that share it."""

    prompt: tuple[int, ...]
    samples: tuple[Sample, ...]

    @property
    def length(self) -> int:
        """Tokens, without padding."""
        return len(self.prompt) + sum(len(sample.response) for sample in self.samples)


EMPTY = Row((0,), (Sample((0,), (0,), 0.0, (0.0,)),))
"""Weighs nothing. A rank that has run out of micro-batches computes it, to take part in the others' collectives."""

OVERHEAD_TOKENS = 128
"""What a forward and backward pass costs besides its tokens, in tokens: measured on one CPU core with a small model."""


def make_rows(samples: Iterable[Sample], shared_prompt_tokens: int) -> list[Row]:
    """Rows of at most `shared_prompt_tokens` tokens; a response that does not fit beside others has a row of its own."""
    by_prompt: dict[tuple[int, ...], list[Sample]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt, []).append(sample)
    rows: list[Row] = []
    for prompt, members in by_prompt.items():
        members.sort(key=lambda sample: len(sample.response))
        current: list[Sample] = []
        length = len(prompt)
        for sample in members:
            if current and length + len(sample.response) > shared_prompt_tokens:
                rows.append(Row(prompt, tuple(current)))
                current, length = [], len(prompt)
            current.append(sample)
            length += len(sample.response)
        rows.append(Row(prompt, tuple(current)))
    return rows


def deal(rows: Sequence[Row], ranks: int) -> list[list[Row]]:
    """Each rank's rows: longest first, dealt back and forth, so that ranks get about the same tokens and lengths."""
    hands: list[list[Row]] = [[] for _ in range(ranks)]
    for index, row in enumerate(sorted(rows, key=lambda row: row.length, reverse=True)):
        turn, seat = divmod(index, ranks)
        hands[seat if turn % 2 == 0 else ranks - 1 - seat].append(row)
    return hands


def micro_batches(rows: Sequence[Row], token_budget: int) -> list[list[Row]]:
    """Rows of like length together, each micro-batch at most `token_budget` tokens with padding, or a single row.

    Of all ways to cut the rows, sorted by length, the one that computes least, when a micro-batch costs its padded tokens
    and `OVERHEAD_TOKENS` (dynamic programming: a long tail must not be what short rows are padded to).
    """
    ordered = sorted(rows, key=lambda row: row.length, reverse=True)
    lengths = [row.length for row in ordered]
    # cheapest[i]: cost of the rows from i on; cut[i]: where their first micro-batch ends.
    cheapest = [0] * (len(ordered) + 1)
    cut = [0] * len(ordered)
    for start in range(len(ordered) - 1, -1, -1):
        longest = lengths[start]
        room = max(1, token_budget // max(1, longest))
        cheapest[start], cut[start] = min(
            (longest * (end - start) + OVERHEAD_TOKENS + cheapest[end], end)
            for end in range(start + 1, min(start + room, len(ordered)) + 1)
        )
    batches = []
    start = 0
    while start < len(ordered):
        batches.append(ordered[start : cut[start]])
        start = cut[start]
    return batches


def plan(
    samples: Sequence[Sample], *, ranks: int, token_budget: int, shared_prompt_tokens: int
) -> list[list[list[Row]]]:
    """The micro-batches of each rank, the same number for every rank; the same on every rank that computes it."""
    hands = deal(make_rows(samples, shared_prompt_tokens), ranks)
    batches = [micro_batches(hand, token_budget) for hand in hands]
    count = max(len(batch) for batch in batches)
    return [batch + [[EMPTY]] * (count - len(batch)) for batch in batches]
