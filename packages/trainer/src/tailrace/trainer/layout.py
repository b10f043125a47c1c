"""Arranges responses for the forward passes in rows, ranks and micro-batches. Plain Python, no torch.

A row is one prompt followed by one or more responses to it. A row of several responses computes their common prompt once. A
mask and restarted positions keep the responses from attending to one another. Any arrangement gives the same gradient (see
`advantages.token_weights`); this one is chosen for speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A response to train on, or a context of one that has several.

    Args:
        prompt: prompt token ids; a tuple, or what is hashable and has their number, and is an array when they are needed.
        response: response token ids, at least one; values for each token may come later too (`tailrace.trainer.packed`).
        weight: weight of each trained token in the sum over the batch (see `advantages.token_weights`).
        behaviour: log-probability of each response token when it was drawn; empty for supervised samples.
        advantage: the response's advantage; with a critic, which makes advantages of tokens of it, its reward.
        generated: for each response token, whether it is trained on, at least one; otherwise it is context for those behind
            it, as what an environment answered is. Empty: all are.
        versions: the weight version that drew each response token; empty if that is not known.
    """

    prompt: Sequence[int]
    response: Sequence[int]
    weight: float
    behaviour: Sequence[float] = ()
    advantage: float = 0.0
    generated: Sequence[bool] = ()
    versions: Sequence[int] = ()

    @property
    def trained(self) -> Sequence[int]:
        """Where the tokens that are trained on stand in the response."""
        if not self.generated:
            return range(len(self.response))
        return [place for place, generated in enumerate(self.generated) if generated]


@dataclass(frozen=True, slots=True)
class PackedRow:
    """A prompt and the responses that share it."""

    prompt: Sequence[int]
    samples: tuple[TrainingSample, ...]

    @property
    def length(self) -> int:
        """Number of tokens, without padding."""
        return len(self.prompt) + sum(len(sample.response) for sample in self.samples)


EMPTY = PackedRow((0,), (TrainingSample((0,), (0,), 0.0, (0.0,), versions=(0,)),))
"""A row of weight 0. A rank without micro-batches left computes it, to take part in the others' collectives."""

OVERHEAD_TOKENS = 128
"""Fixed cost of a forward and backward pass, in tokens; measured on one CPU core with a small model."""


def make_rows(samples: Iterable[TrainingSample], shared_prompt_tokens: int) -> list[PackedRow]:
    """Rows of at most `shared_prompt_tokens` tokens. A response that does not fit with others has its own row."""
    by_prompt: dict[Sequence[int], list[TrainingSample]] = {}
    for sample in samples:
        by_prompt.setdefault(sample.prompt, []).append(sample)
    rows: list[PackedRow] = []
    for prompt, members in by_prompt.items():
        members.sort(key=lambda sample: len(sample.response))
        current: list[TrainingSample] = []
        length = len(prompt)
        for sample in members:
            if current and length + len(sample.response) > shared_prompt_tokens:
                rows.append(PackedRow(prompt, tuple(current)))
                current, length = [], len(prompt)
            current.append(sample)
            length += len(sample.response)
        rows.append(PackedRow(prompt, tuple(current)))
    return rows


def deal(rows: Sequence[PackedRow], ranks: int) -> list[list[PackedRow]]:
    """Each rank's rows. Rows are dealt longest first, back and forth, so that ranks get about the same tokens and lengths."""
    hands: list[list[PackedRow]] = [[] for _ in range(ranks)]
    for index, row in enumerate(sorted(rows, key=lambda row: row.length, reverse=True)):
        turn, seat = divmod(index, ranks)
        hands[seat if turn % 2 == 0 else ranks - 1 - seat].append(row)
    return hands


def packed_micro_batches(rows: Sequence[PackedRow], token_budget: int) -> list[list[PackedRow]]:
    """Micro-batches of at most `token_budget` tokens, or of a single row, without padding: each row, longest first, goes into
    the first that has room for it, else into one of its own. Rows of several responses come first in a micro-batch."""
    batches: list[list[PackedRow]] = []
    room: list[int] = []
    for row in sorted(rows, key=lambda row: row.length, reverse=True):
        place = next((place for place, free in enumerate(room) if free >= row.length), len(batches))
        if place == len(batches):
            batches.append([])
            room.append(token_budget)
        batches[place].append(row)
        room[place] -= row.length
    return [sorted(batch, key=lambda row: len(row.samples) == 1) for batch in batches]


def micro_batches(rows: Sequence[PackedRow], token_budget: int) -> list[list[PackedRow]]:
    """Micro-batches of rows of similar length, each of at most `token_budget` tokens with padding, or of a single row.

    The rows are sorted by length and cut by dynamic programming, such that the sum of padded tokens and of `OVERHEAD_TOKENS`
    per micro-batch is least. So short rows are not padded to the long tail.
    """
    ordered = sorted(rows, key=lambda row: row.length, reverse=True)
    lengths = [row.length for row in ordered]
    # cheapest[i]: least cost of the rows from i on; cut[i]: where their first micro-batch ends.
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
    samples: Sequence[TrainingSample],
    *,
    ranks: int,
    token_budget: int,
    shared_prompt_tokens: int,
    cells: int = 1,
    packed: bool = False,
) -> list[list[list[PackedRow]]]:
    """The micro-batches of each rank, equally many for every rank of a cell. Every rank that calls this gets the same result.

    Args:
        samples: the samples; none of them empty.
        ranks: number of ranks; a cell has ``ranks / cells`` that follow each other.
        token_budget: most tokens of a micro-batch.
        shared_prompt_tokens: most tokens of a row with several responses.
        cells: number of cells.
        packed: whether the rows of a micro-batch follow each other without padding.
    """
    hands = deal(make_rows(samples, shared_prompt_tokens), ranks)
    split = packed_micro_batches if packed else micro_batches
    batches = [split(hand, token_budget) for hand in hands]
    size = ranks // cells
    counts = [max(map(len, batches[first : first + size])) for first in range(0, ranks, size)]
    return [batch + [[EMPTY]] * (counts[rank // size] - len(batch)) for rank, batch in enumerate(batches)]
