"""Presets against what their sources report, which is not all that they were made from."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from tailrace.fleetsim.workload import WorkloadConfig
from tailrace.fleetsim.workload.lengths import CALLS, RESPONSES, Lengths

# Normal scores of shares.
P75, P90, P95, P99, P999 = 0.674490, 1.281552, 1.644854, 2.326348, 3.090232

# PolyTrace's data, as reported: number, and the relative tolerance. Its mixture for Intern-S1 is published rounded, and its
# p99 is that of the data, not of the mixture.
REPORTED = {
    "dapo-32b": {"mean": (581, 0.02), 0.0: (465, 0.01), P75: (698, 0.01), P90: (1041, 0.01), P95: (1416, 0.01)}
    | {P99: (2711, 0.01), P999: (5465, 0.01), "log": (0.92, 0.03)},
    "deepcoder-14b": {
        "mean": (9382, 0.02),
        0.0: (9900, 0.01),
        P75: (14290, 0.01),
        P90: (16000, 0.01),
        "log": (0.8, 0.03),
    },
    "intern-s1-math": {
        "mean": (9575, 0.01),
        0.0: (8172, 0.01),
        P90: (18395, 0.01),
        P95: (21512, 0.01),
        P99: (26427, 0.01),
    },
}


@pytest.mark.parametrize("name", REPORTED)
def test_a_preset_is_its_source(name: str) -> None:
    lengths = RESPONSES[name].lengths
    for what, (expected, tolerance) in REPORTED[name].items():
        if what == "mean":
            found = lengths.spread().mean
        elif what == "log":
            found = log_deviation(lengths)
        else:
            assert isinstance(what, float)
            found = min(lengths.limit(), lengths.table.at(what))
        assert found == pytest.approx(expected, rel=tolerance), (name, what)


def log_deviation(lengths: Lengths) -> float:
    """Standard deviation of log length, by a rule of its own."""
    nodes = [(-8 + 16 * (i + 0.5) / 8000) for i in range(8000)]
    weights = [math.exp(-0.5 * z * z) for z in nodes]
    logs = [math.log(max(1.0, min(lengths.limit(), lengths.table.at(z)))) for z in nodes]
    total = sum(weights)
    mean = sum(w * y for w, y in zip(weights, logs, strict=True)) / total
    return math.sqrt(sum(w * (y - mean) ** 2 for w, y in zip(weights, logs, strict=True)) / total)


def test_the_standard_deviation_of_intern_s1() -> None:
    drawn = WorkloadConfig.model_validate({"response": "intern-s1-math"}).build(1, 10**6)
    lengths = [drawn.group(index, 1)[0].response_tokens for index in range(20_000)]
    mean = fmean(lengths)
    assert math.sqrt(fmean((one - mean) ** 2 for one in lengths)) == pytest.approx(5943, rel=0.02)


def test_the_usual_one_has_a_tail_of_ten_medians() -> None:
    """Laminar, section 2.2: p99 is ten times p50 in some tasks; mean of 5K to 6K inferred for 32B."""
    spread = RESPONSES["lognormal"].lengths.spread(16_384)
    assert RESPONSES["lognormal"].lengths.table.at(P99) / spread.p50 == pytest.approx(10, rel=0.01)
    assert 5000 < spread.mean < 6000


def test_sessions_of_tool_calling_have_the_turns_that_were_counted() -> None:
    counted = {1: 4640, 2: 18785, 3: 104344, 4: 17533, 5: 48933, 6: 34629, 7: 9189, 8: 1820, 9: 652, 10: 1021}
    table = {"environment": {"calls": "tool-calling", "latency": {"median": 1.0}}}
    drawn = WorkloadConfig.model_validate(table).build(5, 16_384)
    turns = [len(one.turns) for index in range(5000) for one in drawn.group(index, 4)]
    total = sum(counted.values())
    for number, count in counted.items():
        share = count / total
        assert turns.count(number) / len(turns) == pytest.approx(share, abs=4 * math.sqrt(share / len(turns)))
    assert sum(CALLS["tool-calling"].values()) == 241_546
