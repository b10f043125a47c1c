"""Contract suites for samplers and eviction policies: run them on your own class. Standard library only.

Each case is drawn from a seed; a failure's message names the seed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tailrace.contracts import Candidate, Eviction, Sampler


def random_candidates(random_numbers: random.Random, count: int) -> list[Candidate]:
    """Complete groups of several versions, in a random order of completion."""
    keys = random_numbers.sample(range(1000), count)
    return [
        Candidate(
            key=key,
            version=random_numbers.randrange(4),
            order=order,
            rewards=tuple(random_numbers.choice([0.0, 0.1, 1.0]) for _ in range(random_numbers.choice([1, 4]))),
            tokens=random_numbers.randrange(1, 500),
        )
        for order, key in enumerate(keys)
    ]


def check_sampler(sampler: Sampler, *, seed: int = 0, cases: int = 300) -> None:
    """Check a sampler's contract: it picks exactly `count` different keys of the candidates, the same every time.

    Args:
        sampler: the sampler.
        seed: the first case's seed; later cases count up.
        cases: number of cases.

    Raises:
        AssertionError: the sampler breaks the contract; the message names the seed.
    """
    _check_choice(sampler.pick, seed, cases)


def check_eviction(eviction: Eviction, *, seed: int = 0, cases: int = 300) -> None:
    """Check an eviction policy's contract, which is that of a sampler.

    Args:
        eviction: the policy.
        seed: the first case's seed; later cases count up.
        cases: number of cases.

    Raises:
        AssertionError: the policy breaks the contract; the message names the seed.
    """
    _check_choice(eviction.evict, seed, cases)


def _check_choice(choose: Callable[[Sequence[Candidate], int], Sequence[int]], seed: int, cases: int) -> None:
    for case in range(seed, seed + cases):
        random_numbers = random.Random(case)
        candidates = random_candidates(random_numbers, random_numbers.randrange(0, 20))
        count = random_numbers.randrange(len(candidates) + 1)
        keys = list(choose(tuple(candidates), count))
        assert len(keys) == count, f"seed {case}: {len(keys)} keys, expected {count}"
        assert len(set(keys)) == count, f"seed {case}: a key twice in {keys}"
        assert set(keys) <= {group.key for group in candidates}, f"seed {case}: {keys} are not all keys that were shown"
        assert list(choose(tuple(candidates), count)) == keys, f"seed {case}: the choice is not deterministic"
        shuffled = random_numbers.sample(candidates, len(candidates))
        assert list(choose(tuple(shuffled), count)) == keys, (
            f"seed {case}: the choice depends on the order of the groups"
        )
