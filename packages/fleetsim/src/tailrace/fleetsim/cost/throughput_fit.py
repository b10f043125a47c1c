"""Fits StaleFlow's four coefficients to the simulator's finer cost of decoding, and measures the error (Appendix B)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from tailrace.fleetsim.errors import FleetError
from tailrace.repack import ThroughputModel

Sample = tuple[float, int, float]


class Steps(Protocol):
    """The cost of a decoding step."""

    kv_capacity_tokens: int

    def step_s(self, running: int, kv_tokens: float) -> float:
        """Seconds of one step."""
        ...


def profile_samples(cost: Steps, *, most_running: int = 128, longest: int = 40_960) -> list[Sample]:
    """(tokens in the KV cache, running trajectories, seconds of a step), as an offline profile would measure them.

    Batch sizes are those for which vLLM captures graphs: 1, 2, 4, then multiples of 8. Contexts go from 1/16 of the longest
    that fits (at most `longest` tokens) to all of it.

    Raises:
        FleetError: `most_running` or `longest` is below 1.
    """
    if most_running < 1 or longest < 1:
        raise FleetError(f"found batches up to {most_running} and contexts up to {longest} tokens, expected at least 1")
    samples = []
    for running in (1, 2, 4, *range(8, most_running + 1, 8)):
        if running <= min(most_running, cost.kv_capacity_tokens):
            whole = min(longest, cost.kv_capacity_tokens // running)
            for share in (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0):
                tokens = running * max(1.0, whole * share)
                samples.append((tokens, running, cost.step_s(running, tokens)))
    return samples


def fit_coefficients(cost: Steps, *, most_running: int = 128, longest: int = 40_960) -> ThroughputModel:
    """The coefficients with the least squared error of latency on `profile_samples`, with KV sizes in tokens.

    Raises:
        FitError: the cost contradicts the model.
    """
    return ThroughputModel.fit(profile_samples(cost, most_running=most_running, longest=longest))


def throughput_error(model: ThroughputModel, samples: Sequence[Sample]) -> float:
    """Mean relative error of the model's throughput on samples with at least one running trajectory.

    StaleFlow reports 0.105 over the run of a real instance (Appendix B.2).
    """
    if not samples:
        raise FleetError("found no samples, expected some to measure an error on")
    errors = [abs(model.throughput(tokens, running) * seconds / running - 1) for tokens, running, seconds in samples]
    return math.fsum(errors) / len(errors)
