"""Contract suite for training policies."""

from __future__ import annotations

import random

from tailrace.contracts.axes import check_policy
from tailrace.contracts.policies import TrainingPolicy


def check_training_policy(policy: TrainingPolicy, *, seed: int = 0, cases: int = 300) -> int:
    """Check a training policy against the rules of `TrainingPolicy`: each group is trained on once.

    Args:
        seed: the first case's seed; later cases count up.
        cases: number of cases.

    Returns:
        Optimizer steps over all cases. A caller can check that the suite was not idle.

    Raises:
        AssertionError: the policy breaks the contract; the message names the seed.
    """
    check_policy("training", policy)
    parts = 0
    streams = policy.streams
    assert isinstance(streams, bool), f"found streams={streams!r}, expected a truth value"
    early = policy.early_gradients()
    if early is not None:
        assert streams, f"{policy!r} adds gradients, but streams is {streams}"
        for name, value in (("groups", early.groups), ("tokens", early.tokens)):
            if value is not None or name == "groups":
                assert isinstance(value, int), f"found {name}={value!r} of early_gradients, expected a number"
                assert value >= 1, f"found {name}={value} of early_gradients, expected at least 1"
        share = early.share
        assert share is None or 0 < share <= 1, (
            f"found share={share!r} of early_gradients, expected above 0 and at most 1"
        )
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
        assert len(split) == 1 or early is None, (
            f"{where}: {len(split)} optimizer steps on a batch whose gradients are added, expected one"
        )
        found = policy.early_gradients()
        assert found == early, f"{where}: early_gradients is {early} and then {found}"
        assert policy.streams == streams, f"{where}: streams is {streams} and then {policy.streams}"
        parts += len(split)
    return parts
