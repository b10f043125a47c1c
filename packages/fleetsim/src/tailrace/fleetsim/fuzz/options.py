"""Random options for every built-in policy, such that what comes out makes sense together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from random import Random
from typing import Any

from tailrace.contracts import plugins

Options = Callable[[Random], dict[str, Any]]


def _none(random: Random) -> dict[str, Any]:  # noqa: ARG001 - each takes one
    return {}


def _inherent(random: Random) -> dict[str, Any]:
    return {} if random.random() < 0.6 else {"bound": random.randint(0, 3)}


def _redundant(random: Random) -> dict[str, Any]:
    return {
        "surplus_samples": random.choice([0, 1, 2]),
        "surplus_groups": random.choice([0, 0, 1, 2]),
        "filter_equal_rewards": random.random() < 0.4,
    }


def _best_fit(random: Random) -> dict[str, Any]:
    return {
        "kv_threshold": random.choice([0.5, 0.9, 0.99]),
        "roofline_batch": random.choice([4, 16, 64]),
        "headroom": random.choice([0.0, 0.1]),
        "period_s": random.choice([0.5, 2.0, 5.0]),
        "literal": random.random() < 0.2,
    }


def _migration(random: Random) -> dict[str, Any]:
    return {
        "phi_wait": random.choice([0, 1, 3]),
        "phi_throughput": random.choice([1.0, 1.5, 5.0]),
        "period_s": random.choice([0.2, 1.0, 4.0]),
    }


def _isolate(random: Random) -> dict[str, Any]:
    if random.random() < 0.8:
        return {"max_restarts": 1_000, "trainer_restarts": 1_000, "data_restarts": 1_000}
    few = random.randint
    return {"max_restarts": few(0, 3), "trainer_restarts": few(0, 2), "data_restarts": few(0, 2)}


# What a case is drawn from. A policy that is not here is never drawn: a test says so.
OPTIONS: Mapping[str, Mapping[str, Options]] = {
    "admission": {
        "bounded": lambda random: {"bound": random.randint(0, 3)},
        "in-flight-cap": lambda random: {"bound": random.randint(0, 2), "in_order": random.random() < 0.4},
        "inherent": _inherent,
        "on-policy": _none,
        "one-step": _none,
    },
    "batching": {
        "plain": lambda random: {"filter_equal_rewards": random.random() < 0.3},
        "redundant": _redundant,
    },
    "routing": {
        "least-loaded": _none,
        "marginal-throughput": lambda random: {"mu": random.choice([0.05, 0.3, 0.8])},
        "round-robin": _none,
    },
    "sync": {"barrier": _none, "interrupting": _none, "on-idle": _none, "when-useful": _none},
    "relocation": {"best-fit": _best_fit, "migration": _migration, "none": _none},
    "training": {
        "full-batch": _none,
        "mini-batch": lambda random: {"parts": random.randint(1, 3)},
        "streamed": lambda random: {"parts": random.randint(1, 3)},
    },
    "provisioning": {"static": _none},
    "recovery": {"isolate": _isolate, "restart-task": _none},
    "sampler": {"fifo": _none, "lifo": _none, "newest": _none, "reward-variance": _none},
}
_RARE = {"restart-task": 0.08}


@cache
def _registered(axis: str) -> tuple[str, ...]:
    known = set(plugins.names(f"tailrace.{axis}"))
    return tuple(sorted(name for name in OPTIONS[axis] if name in known))


def draw_policy(random: Random, axis: str) -> dict[str, Any]:
    """A policy of an axis with its options, as a configuration says it."""
    names = _registered(axis)
    name = random.choice(names)
    if name in _RARE and random.random() >= _RARE[name] * len(names):
        name = next(other for other in names if other not in _RARE)
    return {"name": name, **OPTIONS[axis][name](random)}
