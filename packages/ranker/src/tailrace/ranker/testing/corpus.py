"""Prompts of two kinds of problems with lengths that depend on what they ask, for tests and examples."""

from __future__ import annotations

import math
import random

from tailrace.ranker.example import Example


def made_examples(prompts: int, samples: int = 4, *, seed: int = 0, cap: int = 400, version: int = 0) -> list[Example]:
    """Different prompts of families ``sums`` and ``words``, with log-normal lengths.

    A sum's length grows with its terms, that of a list of words with their number and with "sort" instead of "copy". The
    characters of a prompt say something of it, but not all: the spread within a prompt is 0.3 of ln tokens.

    Args:
        prompts: how many.
        samples: of each.
        seed: of all.
        cap: tokens at which a response is truncated.
        version: of the examples.
    """
    drawn = random.Random(seed)
    made: dict[str, tuple[float, str]] = {}
    while len(made) < prompts:
        if drawn.random() < 0.5:
            terms = drawn.randint(2, 12)
            prompt = "Sum up: " + " + ".join(str(drawn.randint(1, 10 ** drawn.randint(1, 4))) for _ in range(terms))
            made[prompt] = (6.0 * terms, "sums")
        else:
            count, verb = drawn.randint(2, 10), drawn.choice(("sort", "copy"))
            words = ("".join(drawn.choices("abcdefgh", k=drawn.randint(2, 9))) for _ in range(count))
            made[f"Please {verb} these words: {', '.join(words)}"] = (
                count * (14.0 if verb == "sort" else 3.0),
                "words",
            )
    examples = []
    for prompt, (middle, family) in made.items():
        lengths = [max(1, round(middle * math.exp(drawn.gauss(0, 0.3)))) for _ in range(samples)]
        truncated = tuple(length > cap for length in lengths)
        examples.append(Example(prompt, tuple(min(length, cap) for length in lengths), truncated, family, version))
    return examples
