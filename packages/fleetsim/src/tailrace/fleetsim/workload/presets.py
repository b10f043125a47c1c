"""Distributions that others have measured or published, by name. Token counts are those of the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from tailrace.fleetsim.workload.lengths import Lengths
from tailrace.fleetsim.workload.shapes import Lognormal, Mixture, Normal, Quantiles


@dataclass(frozen=True, slots=True)
class Preset:
    """Response lengths and, if measured, their correlation within a group."""

    lengths: Lengths
    correlation: float | None = None


def _quantiles(points: Mapping[float, float]) -> Quantiles:
    score = NormalDist().inv_cdf
    return Quantiles(tuple((score(share), tokens) for share, tokens in points.items()))


RESPONSES: Mapping[str, Preset] = {
    # p99 is ten times p50, as in some of Laminar's tasks (section 2.2, Figure 2). With a limit of 16,384 the mean is 5.1K:
    # Laminar's latencies on 32B imply 5K to 6K (inferred; its Figure 17 is not in the text).
    "lognormal": Preset(Lengths(Lognormal(3500, 0.99)), 0.5),
    # PolyTrace (arXiv 2509.25279), verl with DAPO, Qwen2.5-32B from the base model, early steps: 4,608 samples, 576 groups
    # of 8. From p50 on as measured over all. Below p50, chosen by the first step (4 % stop after a few words) such that the
    # mean (581) and the standard deviation of the log (0.92) agree.
    "dapo-32b": Preset(
        Lengths(
            _quantiles(
                {
                    0.02: 28,
                    0.05: 90,
                    0.1: 170,
                    0.25: 308,
                    0.5: 465,
                    0.75: 698,
                    0.9: 1041,
                    0.95: 1416,
                    0.99: 2711,
                    0.999: 5465,
                }
            )
        ),
        0.06,
    ),
    # PolyTrace, rLLM with DeepCoder-14B, limit of 16,000 tokens: 640 samples, 80 groups of 8. From p50 on as measured. Below
    # p50, chosen such that the mean (9,382) and the standard deviation of the log (0.8) agree. Lengths beyond the limit are
    # unknown.
    "deepcoder-14b": Preset(
        Lengths(_quantiles({0.1: 2300, 0.25: 5300, 0.5: 9900, 0.75: 14290, 0.9: 16000}), cap=16000), 0.92
    ),
    # PolyTrace, Intern-S1 in production, mathematics, 385,024 samples: its published mixture of four normal distributions.
    "intern-s1-math": Preset(
        Lengths(
            Mixture(
                (
                    (0.3585, Normal(4959, 2192)),
                    (0.0743, Normal(12720, 6067)),
                    (0.3728, Normal(9175, 3416)),
                    (0.1943, Normal(17655, 5267)),
                )
            )
        )
    ),
}

CALLS: Mapping[str, Mapping[int, float]] = {
    # PolyTrace, Intern-S1 in production, tool calling, 241,546 sessions. It counts calls of the model: a session of n calls has
    # n inputs and n outputs, hence n - 1 calls of the environment.
    "tool-calling": {0: 4640, 1: 18785, 2: 104344, 3: 17533, 4: 48933, 5: 34629, 6: 9189, 7: 1820, 8: 652, 9: 1021},
}
