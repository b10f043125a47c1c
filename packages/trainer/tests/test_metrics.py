"""Metrics of a batch that several optimizer steps were made on."""

import random

import pytest

from tailrace.trainer.metrics import merge_metrics

FIRST = {
    "loss": 1.0,
    "entropy": 2.0,
    "reward_mean": 0.5,
    "tokens": 10.0,
    "trajectories": 2.0,
    "step_s": 1.0,
    "lr": 0.1,
}
SECOND = {
    "loss": 3.0,
    "entropy": 6.0,
    "reward_mean": 1.0,
    "tokens": 30.0,
    "trajectories": 6.0,
    "step_s": 2.0,
    "lr": 0.2,
}


def test_they_are_those_of_one_step():
    assert merge_metrics([FIRST | {"staleness_max": 3.0}, SECOND | {"staleness_max": 1.0}]) == {
        "loss": 2.0,
        "entropy": 5.0,
        "reward_mean": 0.875,
        "tokens": 40.0,
        "trajectories": 8.0,
        "step_s": 3.0,
        "lr": 0.2,
        "staleness_max": 3.0,
    }
    assert merge_metrics([FIRST]) == FIRST


def test_what_a_part_lacks_is_that_of_the_others():
    first = {"tokens": 10.0, "mismatch_kl": 0.1, "tokens_staleness_1": 4.0, "kl_staleness_1": 1.0}
    second = {"tokens": 20.0, "mismatch_kl": 0.9, "tokens_staleness_1": 12.0, "kl_staleness_1": 3.0}
    third = {"tokens": 5.0, "tokens_staleness_2": 5.0, "kl_staleness_2": 7.0}
    assert merge_metrics([first, second, third]) == {
        "tokens": 35.0,
        "mismatch_kl": 0.1,
        "tokens_staleness_1": 16.0,
        "kl_staleness_1": 2.5,
        "tokens_staleness_2": 5.0,
        "kl_staleness_2": 7.0,
    }


@pytest.mark.parametrize("of", ["", "_staleness_2"])
def test_an_effective_sample_size_is_that_of_all_ratios(of):
    def told(ratios):
        n, total = len(ratios), sum(ratios)
        share = total**2 / (n * sum(ratio**2 for ratio in ratios))
        return {f"tokens{of}": float(n), f"ratio{of or '_mean'}": total / n, f"effective_sample_size{of}": share}

    draw = random.Random(3)
    parts = [
        [scale * draw.lognormvariate(0.0, 0.5) for _ in range(size)] for size, scale in ((30, 1.0), (7, 9.0), (50, 0.2))
    ]
    merged, whole = merge_metrics([told(part) for part in parts]), told([ratio for part in parts for ratio in part])
    assert merged == {name: pytest.approx(value, rel=1e-12) for name, value in whole.items()}
    assert merge_metrics([told([1.0]), {f"tokens{of}": 0.0}])[f"effective_sample_size{of}"] == 1.0


def test_only_the_first_part_says_how_engine_and_trainer_differ_with_equal_weights():
    """Its steps are behind the weights of the others, whose tokens of staleness 0 differ by these steps, too."""
    first = {"tokens": 10.0, "tokens_staleness_1": 10.0, "kl_staleness_1": 1.0}
    second = {"tokens": 20.0, "mismatch_kl": 0.9, "tokens_staleness_0": 20.0, "kl_staleness_0": 0.9}
    assert "mismatch_kl" not in merge_metrics([first, second])
    assert merge_metrics([second, first])["mismatch_kl"] == 0.9
