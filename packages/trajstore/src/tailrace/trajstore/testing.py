"""Contract suites for samplers and eviction policies: run them on your own class. Standard library only.

Each case is drawn from a seed that a failure names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tailrace.contracts import Candidate, Sampler
from tailrace.trajstore.eviction import Eviction


def random_candidates(random_numbers: random.Random, count: int) -> list[Candidate]:
    """Complete groups of several versions, completed in an order of their own."""
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
    """Hold a sampler to its contract: exactly `count` of the keys that it was shown, none twice, the same every time.

    Raises:
        AssertionError: the sampler breaks the contract; the message names the seed.
    """
    _check_choice(sampler.pick, seed, cases)


def check_eviction(eviction: Eviction, *, seed: int = 0, cases: int = 300) -> None:
    """Hold an eviction policy to its contract, which is that of a sampler.

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
