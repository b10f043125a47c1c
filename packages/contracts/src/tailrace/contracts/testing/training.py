"""Contract suite for training policies."""

from __future__ import annotations

import random

from tailrace.contracts.abilities import AddsGradients, FetchesOnce, FillsCells
from tailrace.contracts.policies import TrainingPolicy


def check_training_policy(policy: TrainingPolicy, *, seed: int = 0, cases: int = 300) -> int:
    """Check a training policy against the rules of its protocols: each group is trained on once.

    Args:
        seed: the first case's seed; later cases count up.
        cases: number of cases.

    Returns:
        Optimizer steps over all cases. A caller can check that the suite was not idle.

    Raises:
        AssertionError: the policy breaks the contract; the message names the seed.
    """
    parts = 0
    streams = policy.streams
    assert isinstance(streams, bool), f"found streams={streams!r}, expected a truth value"
    adding = policy if isinstance(policy, AddsGradients) else None
    most = None if adding is None else adding.groups_at_once
    if most is not None:
        assert streams, f"{policy!r} adds gradients, but streams is {streams}"
        assert isinstance(most, int), f"found groups_at_once={most!r}, expected a number"
        assert most >= 0, f"found groups_at_once={most}, expected at least 1, or 0 for a policy that adds none"
    if isinstance(policy, FillsCells):
        tokens = policy.tokens_at_once
        assert isinstance(tokens, int), f"found tokens_at_once={tokens!r}, expected a number"
        assert tokens >= 1, f"found tokens_at_once={tokens}, expected at least 1"
        assert policy.tokens_at_once == tokens, f"tokens_at_once is {tokens} and then {policy.tokens_at_once}"
    if isinstance(policy, FetchesOnce):
        share = policy.fetched_share
        assert 0 < share <= 1, f"found fetched_share={share!r}, expected above 0 and at most 1"
        assert policy.fetched_share == share, f"fetched_share is {share} and then {policy.fetched_share}"
    for case in range(seed, seed + cases):
        where = f"seed {case}, {policy!r}"
        random_numbers = random.Random(case)
        count = random_numbers.choice([1, 2, 3, random_numbers.randint(1, 200)])
        groups = random_numbers.sample(range(10**6), count)
        given = list(groups)
        split = [list(part) for part in policy.split(given)]
        assert given == groups, f"{where}: the batch was changed"
        assert all(split), f"{where}: an optimizer step on nothing, in {split!r:.200}"
        trained = [group for part in split for group in part]
        assert sorted(trained) == sorted(groups), (
            f"{where}: found {len(trained)} groups in the parts, {len(set(trained))} different ones, expected each of the "
            f"{count} of the batch once"
        )
        again = [list(part) for part in policy.split(tuple(groups))]
        assert again == split, f"{where}: the parts of one batch are {split!r:.200} and then {again!r:.200}"
        if streams:
            sizes = [len(part) for part in split]
            others = [len(part) for part in policy.split(random_numbers.sample(range(10**6), count))]
            assert others == sizes, f"{where}: streamed parts of {count} groups have sizes {sizes} and {others}"
        if adding is not None:
            assert len(split) == 1 or not most, (
                f"{where}: {len(split)} optimizer steps on a batch whose gradients are added, expected one"
            )
            assert adding.groups_at_once == most, f"{where}: groups_at_once is {most} and then {adding.groups_at_once}"
        assert policy.streams == streams, f"{where}: streams is {streams} and then {policy.streams}"
        parts += len(split)
    return parts
