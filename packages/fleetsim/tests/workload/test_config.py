"""The table of a configuration: every way to say it, and one clear line for what cannot be."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tailrace.fleetsim.errors import WorkloadError
from tailrace.fleetsim.workload import WorkloadConfig

FULL = """
prompt = { median = 150, sigma = 0.4, cap = 2048 }
response = [{ weight = 0.8, median = 2000, sigma = 0.8 }, { weight = 0.2, mean = 9000, sd = 2500 }]
correlation = 0.5
drift = [[0, 1.0], [100, 1.4]]
environment = { calls = { 1 = 4640, 2 = 18785, max = 8 }, latency = { median = 2.0, sigma = 1.2, cap = 60.0 } }
solve_rate = { mean = 0.4, spread = 2 }
reward_latency = { median = 0.5 }
"""


def config(text: str) -> WorkloadConfig:
    return WorkloadConfig.model_validate(tomllib.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        FULL,
        "",
        'response = "intern-s1-math"',
        'response = { preset = "deepcoder-14b", scale = 0.5, cap = 6000 }',
        "response = 512",
        "response = { quantiles = [[0.5, 465], [0.9, 1041], [0.99, 2711]], cap = 4000 }",
        "prompt = [{ mean = 300, sd = 20 }]",
        "drift = 1.002",
        "drift = { per_version = 0.999 }",
        'environment = { calls = "tool-calling", latency = { median = 1 } }',
        "environment = { calls = 3, latency = { median = 0 } }",
        "environment = { calls = { mean = 2.5, min = 1, max = 8 }, latency = { median = 1 } }",
    ],
)
def test_it_survives_the_resolved_configuration(text: str) -> None:
    """A run keeps its resolved configuration as JSON and is resumed from it."""
    first = config(text)
    again = WorkloadConfig.model_validate(json.loads(json.dumps(first.model_dump(mode="json"))))
    assert again == first
    limit = 20_000
    assert again.build(1, limit).group(5, 4, 50) == first.build(1, limit).group(5, 4, 50)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("response = 512", {512}),
        ("response = { tokens = 512, scale = 0.5 }", {256}),
        ("response = { tokens = 3, scale = 0.9 }", {3}),
        ("response = 1", {1}),
    ],
)
def test_a_constant(text: str, lengths: set[int]) -> None:
    assert {one.response_tokens for one in config(text).build(1, 1000).group(0, 8)} == lengths


def test_a_preset_brings_its_correlation_unless_told() -> None:
    def alike(text: str) -> float:
        drawn = config(text).build(1, 16_000)
        return sum(
            abs(a.response_tokens - b.response_tokens) for a, b in (drawn.group(index, 2) for index in range(300))
        )

    assert alike('response = "deepcoder-14b"') < 0.5 * alike('response = "deepcoder-14b"\ncorrelation = 0.0')
    assert alike('response = "deepcoder-14b"') == alike('response = "deepcoder-14b"\ncorrelation = 0.92')
    assert alike('response = "intern-s1-math"') == alike('response = "intern-s1-math"\ncorrelation = 0.5')


def test_without_a_word_lengths_suit_the_limit() -> None:
    for limit in (192, 16_384, 100_000):
        spread = config("").build(1, limit).describe().response
        assert spread.p50 == pytest.approx(3500 / 16_384 * limit, rel=1e-6)
        assert spread.longest == limit


def test_a_preset_scales_with_its_cap() -> None:
    """StreamRL, section 7: lengths of at most 20K scaled to 10K and 5K."""
    spread = config('response = { preset = "deepcoder-14b", scale = 0.25 }').build(1, 16_384).describe().response
    assert (spread.p50, spread.longest) == (pytest.approx(2475, rel=1e-3), 4000)


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("respnse = 5", "respnse", "Extra inputs"),
        ("response = { median = 5 }", "response.components.0", "median with sigma"),
        ("response = { median = 5, sigma = 1, sd = 3 }", "response.components.0", "median with sigma"),
        ("response = { median = -5, sigma = 1 }", "response.components.0.median", "greater than 0"),
        ("response = { median = 5, sigma = 11 }", "response.components.0.sigma", "less than or equal to 10"),
        ("response = { median = inf, sigma = 1 }", "response.components.0.median", "finite"),
        ('response = { median = "5", sigma = 1 }', "response.components.0.median", "valid number"),
        ("response = []", "response", "exactly one of components"),
        ('response = "nothing"', "response", "a preset: dapo-32b, deepcoder-14b, intern-s1-math, lognormal"),
        ('response = { preset = "lognormal", tokens = 4 }', "response", "exactly one of"),
        ("response = { median = 5, sigma = 1, caps = 3 }", "response.caps", "Extra inputs"),
        ("response = 0", "response.tokens", "greater than or equal to 1"),
        ("response = true", "response", "valid dictionary"),
        ("response = { quantiles = [[0.5, 10]] }", "response", "two or more [share, tokens]"),
        ("response = { quantiles = [[0.5, 10], [0.4, 20]] }", "response", "shares increasing"),
        ("response = { quantiles = [[0.4, 10], [0.4000001, 20]] }", "response", "increasing by 1e-06 or more"),
        ("response = { quantiles = [[0.0, 10], [0.4, 20]] }", "response", "above 0 and below 1"),
        ("response = { quantiles = [[0.1, 30], [0.4, 20]] }", "response", "do not decrease"),
        ("response = { quantiles = [[0.1, 30, 2], [0.4, 20]] }", "response.quantiles.0", "at most 2 items"),
        ("correlation = 1.1", "correlation", "less than or equal to 1"),
        ("drift = 0", "drift.per_version", "greater than 0"),
        ("drift = [[0, 1.0], [0, 2.0]]", "drift", "versions increasing"),
        ("drift = [[0, -1.0]]", "drift.points.0.1", "greater than 0"),
        ("environment = { calls = 1 }", "environment.latency", "Field required"),
        ("environment = { calls = {}, latency = { median = 1 } }", "environment.calls", "a preset, or counts"),
        ("environment = { calls = { 1 = 0 }, latency = { median = 1 } }", "environment.calls", "weight above 0"),
        ("environment = { calls = { mean = 3 }, latency = { median = 1 } }", "environment.calls", "mean with max"),
        (
            "environment = { calls = { mean = 9, max = 8 }, latency = { median = 1 } }",
            "environment.calls",
            "between min",
        ),
        ("environment = { calls = { 2000 = 1 }, latency = { median = 1 } }", "environment.calls.counts.2000", "1000"),
        ("environment = { calls = 1, latency = { median = 9, cap = 3 } }", "environment.latency", "9 s is above 3 s"),
        ("solve_rate = { mean = 1.5 }", "solve_rate.mean", "less than or equal to 1"),
        ('trace = "a.jsonl"\nresponse = 5\ncorrelation = 0.1', "", "trace, or response, correlation, not both"),
        ("trace = 3", "trace", "Path"),
    ],
)
def test_what_cannot_be_said(text: str, key: str, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        config(text)
    first = caught.value.errors()[0]
    # Pydantic names a mapping's key with an extra part.
    assert ".".join(str(part) for part in first["loc"] if part != "[key]") == key
    assert message in first["msg"]
    assert "\n" not in first["msg"]


@pytest.mark.parametrize(
    ("text", "limit", "message"),
    [
        (
            "response = { median = 20000, sigma = 0.5 }",
            16_384,
            "response lengths: found a median of 20,000 tokens and a limit of 16,384 (max_tokens = 16,384)",
        ),
        (
            "response = { median = 20000, sigma = 0.5 }",
            16_384,
            "expected a limit of 20,000 tokens or more (99 % fit in 64,002), or lengths scaled by 0.819 or less",
        ),
        ("response = 300", 200, "found a median of 300 tokens and a limit of 200"),
        ("response = { median = 9000, sigma = 0.5 }\ndrift = [[0, 1.0], [9, 2.0]]", 16_384, "after a drift of 2 and"),
        ("response = { median = 900, sigma = 0.5, cap = 800 }", 16_384, "a limit of 800 (max_tokens = 16,384)"),
        ('response = "deepcoder-14b"', 8192, "found a median of 9,900 tokens and a limit of 8,192"),
        ("response = { median = 900, sigma = 0.5, cap = 2000 }", 1000, "found cap = 2,000 above max_tokens = 1,000"),
        ("prompt = { median = 900, sigma = 0.5, cap = 800 }", 1000, "prompt lengths: found a median of 900 tokens"),
    ],
)
def test_numbers_that_clash(text: str, limit: int, message: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        config(text).build(1, limit)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("limit", [16_384, 20_000])
def test_what_would_fit_fits(limit: int) -> None:
    text = "response = { median = 20000, sigma = 0.5, scale = 0.819 }" if limit < 20_000 else "response = 20000"
    assert config(text).build(1, limit).describe().response.p50 <= limit


def test_a_trace_beyond_the_limit_says_what_fits(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    rows: list[dict[str, Any]] = [{"group": 0, "prompt_tokens": 5, "response_tokens": n} for n in (10, 30, 20)]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    with pytest.raises(WorkloadError, match=r"run.jsonl:2: found a response of 30 tokens.* max_tokens = 30 would fit"):
        WorkloadConfig(trace=path).build(1, 29)
    assert WorkloadConfig(trace=path).build(1, 30).describe().response.longest == 30
