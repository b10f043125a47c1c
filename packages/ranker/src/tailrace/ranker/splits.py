"""Divides examples by prompt: what is learned from, and what is held out. Pure.

The same text is never on both sides, however many examples it has.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from math import ceil

from tailrace.ranker.errors import ExampleError
from tailrace.ranker.example import Example

Half = tuple[list[Example], list[Example]]
"""What is known of each prompt, and what is asked."""


def hold_out(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """Two lists in the given order: the rest, and those of a random `share` of the prompts (rounded up, never all)."""
    prompts = sorted({example.prompt for example in examples})
    random.Random(seed).shuffle(prompts)
    count = min(ceil(share * len(prompts)), len(prompts) - 1)
    held = set(prompts[:count])
    return (
        [example for example in examples if example.prompt not in held],
        [example for example in examples if example.prompt in held],
    )


def hold_out_families(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """The rest, and the examples of a random `share` of the families (rounded up, never all).

    Raises:
        ExampleError: there are fewer than two families.
    """
    families = sorted({example.family for example in examples})
    if len(families) < 2:
        raise ExampleError(
            f"found {len(families)} family of prompts, expected at least two in the column family: one is held out"
        )
    random.Random(seed).shuffle(families)
    held = set(families[: min(ceil(share * len(families)), len(families) - 1)])
    known = {example.prompt for example in examples if example.family not in held}
    return (
        [example for example in examples if example.family not in held],
        [example for example in examples if example.family in held and example.prompt not in known],
    )


def prompts_of(examples: Sequence[Example]) -> int:
    """The number of different prompts."""
    return len({example.prompt for example in examples})


def halves(examples: Sequence[Example], seed: int) -> tuple[Half, Half]:
    """The samples of each prompt in two halves, and the two ways to know one and ask for the other.

    Where a prompt has samples of several versions, the older ones come first, so that what is known is older in the first way.
    Within a version the order is random. Prompts with one sample are left out.
    """
    drawn = random.Random(seed)
    by_prompt: dict[str, list[Example]] = {}
    for example in examples:
        by_prompt.setdefault(example.prompt, []).append(example)
    first: list[Example] = []
    second: list[Example] = []
    for group in by_prompt.values():
        singles = [
            replace(example, lengths=(length,), truncated=(truncated,))
            for example in group
            for length, truncated in example.samples
        ]
        if len(singles) < 2:
            continue
        drawn.shuffle(singles)
        singles.sort(key=lambda single: single.version)
        middle = len(singles) // 2
        first += singles[:middle]
        second += singles[middle:]
    return (first, second), (second, first)
