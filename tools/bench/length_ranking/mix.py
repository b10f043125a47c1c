"""The mix of problems that a ranker is measured on: families of reasoning-gym by difficulty, and worked solutions to them.

It was fixed before anything was measured. The longest solutions are those of short questions (lcm, count_primes, coin_flip), of
long ones (leg_counting, letter_counting), and the longest questions (string_insertion, binary_alternation, number_sorting) have
short or middling ones: the length of a question says little of the length of its answer. Families whose generators depend on
the order of a set are not among them: they would be others in each process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from length_ranking import worked

from tailrace.reward.gym import import_reasoning_gym

BANDS = ("easy", "medium", "hard")
PROMPTS = 52
"""How many each family has in each band."""
DIRECT = 0.2
"""The share of solutions that give the answer without the work, whatever the problem: a habit that RL unlearns."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of problems.

    Args:
        name: of the data set in reasoning-gym.
        bands: its options in each of `BANDS`.
        work: the words of a solution, see `worked`.
    """

    name: str
    bands: tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
    work: Callable[[worked.Metadata], list[str]]


def _between(least: str, most: str, *ranges: tuple[int, int], **more: Any) -> tuple[Any, Any, Any]:
    """The options of three bands that differ in a range."""
    one, two, three = ({least: low, most: high, **more} for low, high in ranges)
    return one, two, three


FAMILIES = (
    Family(
        "chain_sum",
        _between("min_terms", "max_terms", (3, 4), (5, 8), (9, 14), min_digits=1, max_digits=1),
        worked.chain_sum,
    ),
    Family("gcd", _between("min_value", "max_value", (2, 30), (30, 200), (200, 999)), worked.gcd),
    Family("lcm", _between("min_value", "max_value", (2, 14), (8, 25), (15, 50)), worked.lcm),
    Family(
        "prime_factorization",
        _between("min_value", "max_value", (2, 100), (101, 500), (501, 1999)),
        worked.prime_factorization,
    ),
    Family(
        "base_conversion", _between("min_value", "max_value", (5, 60), (61, 400), (401, 4000)), worked.base_conversion
    ),
    Family("count_bits", _between("min_n", "max_n", (1, 255), (256, 4095), (4096, 262143)), worked.count_bits),
    Family("count_primes", _between("min_n", "max_n", (1, 40), (20, 100), (60, 250)), worked.count_primes),
    Family("coin_flip", _between("min_trials", "max_trials", (3, 8), (9, 14), (15, 22)), worked.coin_flip),
    Family("letter_counting", _between("min_words", "max_words", (3, 6), (7, 14), (15, 30)), worked.letter_counting),
    Family("leg_counting", _between("min_animals", "max_animals", (2, 3), (4, 6), (7, 10)), worked.leg_counting),
    Family(
        "number_sorting",
        _between("min_numbers", "max_numbers", (3, 4), (5, 7), (8, 10), max_decimals=0),
        worked.number_sorting,
    ),
    Family("binary_alternation", _between("min_n", "max_n", (6, 10), (11, 18), (19, 30)), worked.binary_alternation),
    Family(
        "string_insertion",
        _between("min_string_length", "max_string_length", (5, 8), (9, 14), (15, 20)),
        worked.string_insertion,
    ),
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the mix.

    Args:
        prompt: the question.
        answer: the right one.
        family, band: where it comes from.
        entry: its metadata, which reasoning-gym's score function reads.
    """

    prompt: str
    answer: str
    family: str
    band: str
    entry: Mapping[str, Any]

    def row(self) -> dict[str, Any]:
        """The row of a file of prompts, scored by reasoning-gym's own function."""
        return {
            "prompt": self.prompt,
            "answer": self.answer,
            "verifier": "reasoning-gym",
            "metadata": {"dataset": self.family, "entry": dict(self.entry)},
        }


def problems(seed: int, each: int = PROMPTS) -> list[Problem]:
    """`each` different problems of every family and band."""
    found: list[Problem] = []
    seen: set[str] = set()
    for family in FAMILIES:
        for band in range(len(BANDS)):
            drawn = _drawn(family, band, f"problems {seed}")
            while each * (band + 1) > sum(problem.family == family.name for problem in found):
                problem = next(drawn)
                if problem.prompt not in seen:
                    seen.add(problem.prompt)
                    found.append(problem)
    return found


def demonstrations(number: int, seed: int) -> list[tuple[str, str]]:
    """Problems and solutions to learn from, as many of each family and band as of the others. They may repeat."""
    habit = random.Random(f"habit {seed}")
    pairs = []
    sources = [(family, _drawn(family, band, f"demonstrations {seed}")) for family in FAMILIES for band in range(3)]
    for at in range(number):
        family, drawn = sources[at % len(sources)]
        problem = next(drawn)
        pairs.append((problem.prompt, solution(family, problem, direct=habit.random() < DIRECT)))
    return pairs


def solution(family: Family, problem: Problem, *, direct: bool) -> str:
    """A solution as its author writes it: the work and the answer, or only the answer."""
    # A space before each word and nowhere else, so that a tokenizer needs only one token for a digit that begins one.
    answer = f"<answer> {problem.answer}</answer>"
    return answer if direct else f"<think> {' '.join(family.work(problem.entry))}</think>{answer}"


def _drawn(family: Family, band: int, what: str) -> Iterator[Problem]:
    seed = random.Random(f"{what} {family.name} {band}").getrandbits(31)
    dataset = import_reasoning_gym().create_dataset(family.name, seed=seed, size=2**31 - 1, **family.bands[band])
    for index in count():
        item = dataset[index]
        yield Problem(item["question"], item["answer"], family.name, BANDS[band], _plain(item["metadata"]))


def _plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata without what only describes the data set."""
    return {
        key: value for key, value in metadata.items() if key not in ("source_dataset", "source_index", "difficulty")
    }
