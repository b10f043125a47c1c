"""Worked solutions to reasoning-gym's problems, one function for each family. Pure.

Each takes the problem's metadata and returns the words of the solution, without the answer. How many there are depends on what
the numbers are (the steps of Euclid's algorithm, the first divisor, the primes in an interval), not only on how long the
question is: that is what makes lengths hard to tell from outside, and easy for who does the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import comb
from typing import Any

Metadata = Mapping[str, Any]


def chain_sum(problem: Metadata) -> list[str]:
    """The total after each term."""
    first, *rest = problem["expression"].split()
    total, words = int(first), [first]
    for sign, term in zip(rest[::2], rest[1::2], strict=True):
        total += int(term) if sign == "+" else -int(term)
        words += [sign, term, "=", str(total)]
    return words


def gcd(problem: Metadata) -> list[str]:
    """The remainders of Euclid's algorithm."""
    larger, smaller = problem["numbers"]
    words = [str(larger), str(smaller)]
    while smaller:
        larger, smaller = smaller, larger % smaller
        words.append(str(smaller))
    return words


def lcm(problem: Metadata) -> list[str]:
    """The multiples of the larger number, up to one that the smaller one divides."""
    smaller, larger = sorted(problem["numbers"])
    multiples = [larger]
    while multiples[-1] % smaller:
        multiples.append(multiples[-1] + larger)
    return [str(multiple) for multiple in multiples]


def prime_factorization(problem: Metadata) -> list[str]:
    """Trial division: each divisor that was tried, and what was left."""
    left, divisor, words = problem["number"], 2, [str(problem["number"])]
    while divisor * divisor <= left:
        if left % divisor:
            words += ["no", str(divisor)]
            divisor += 1 if divisor == 2 else 2
        else:
            left //= divisor
            words += ["/", str(divisor), "=", str(left)]
    return words


def base_conversion(problem: Metadata) -> list[str]:
    """The value, divided by the new base until nothing is left."""
    left, words = problem["decimal_value"], []
    while left:
        words.append(str(left))
        left //= problem["target_base"]
    return words


def count_bits(problem: Metadata) -> list[str]:
    """The number, halved until nothing is left."""
    left, words = problem["number"], []
    while left:
        words.append(str(left))
        left //= 2
    return words


def count_primes(problem: Metadata) -> list[str]:
    """The primes themselves."""
    return [str(prime) for prime in problem["primes"]]


def coin_flip(problem: Metadata) -> list[str]:
    """The binomial coefficients up to the one that is asked for; for "at least", those that are summed up."""
    trials, heads = problem["num_trials"], problem["k_heads"]
    summed = range(heads, trials + 1) if problem["problem_type"] == "at_least" else range(heads + 1)
    return [*(str(comb(trials, each)) for each in summed), "/", str(2**trials)]


def letter_counting(problem: Metadata) -> list[str]:
    """Each word, and the count after it."""
    count, words = 0, []
    for word in problem["span"]:
        count += word.lower().count(problem["target_letter"])
        words += [word, str(count)]
    return words


def leg_counting(problem: Metadata) -> list[str]:
    """The legs of each kind of animal, and the total after each."""
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    total, words = 0, []
    for animal, count in problem["animals"].items():
        total += count * ANIMALS[animal]
        words += [str(count), "*", str(ANIMALS[animal]), "=", str(total)]
    return words


def number_sorting(problem: Metadata) -> list[str]:
    """The direction: the answer is all the work."""
    return [problem["direction"]]


def binary_alternation(problem: Metadata) -> list[str]:
    """The places that differ from the alternating string that begins with 0."""
    return [str(place) for place, digit in enumerate(problem["string"]) if int(digit) != place % 2]


def string_insertion(problem: Metadata) -> list[str]:
    """The letters of the string."""
    return list(problem["string"])
