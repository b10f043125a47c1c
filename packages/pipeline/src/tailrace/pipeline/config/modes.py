"""Modes: sync, semi-sync and async as presets of single keys (RobustRL, sections 2.1 and 7.1; Figure 1).

    sync        hybrids only: they generate a batch, yield to the trainer when all of it is complete, and come back
    semi-sync   hybrids, which yield when half of the batch is complete, and standalone replicas, which generate on
    async       standalone replicas only, one step ahead of the trainer, which has devices of its own

A mode says nothing that its keys could not say. A key that says otherwise is refused; options of a policy are free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.pipeline.errors import ConfigError

_AXES: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "sync": {"admission": {"name": "on-policy"}, "provisioning": {"name": "hybrid", "yields_at": 1.0}},
    "semi-sync": {"admission": {"name": "one-step"}, "provisioning": {"name": "hybrid", "yields_at": 0.5}},
    "async": {"admission": {"name": "one-step"}, "provisioning": {"name": "static"}},
}
_COLOCATED = {"sync": True, "semi-sync": True, "async": False}
_REPLICAS = 2  # by default, of all pools


def with_mode(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration in which the keys that its mode sets are there. Anything else wrong is for others to say.

    Raises:
        ConfigError: a key is there that says otherwise.
    """
    pipeline = content.get("pipeline")
    mode = pipeline.get("mode") if isinstance(pipeline, Mapping) else None
    if not isinstance(pipeline, Mapping) or not isinstance(mode, str) or mode not in _AXES:
        return content
    trainer, rollout = content.get("trainer", {}), content.get("rollout", {})
    if not isinstance(trainer, Mapping) or not isinstance(rollout, Mapping):
        return content
    axes = {}
    for axis, preset in _AXES[mode].items():
        found = pipeline.get(axis)
        name = found.get("name") if isinstance(found, Mapping) else found
        if name not in (None, preset["name"]):
            raise ConfigError(
                f"keys 'pipeline.mode' and 'pipeline.{axis}': found {mode!r} and {name!r}, expected {preset['name']!r}, which "
                "the mode sets by itself, or no mode"
            )
        axes[axis] = {**preset, **(found if isinstance(found, Mapping) else {})}
    colocated = _COLOCATED[mode]
    if trainer.get("colocated", colocated) != colocated:
        raise ConfigError(
            f"keys 'pipeline.mode' and 'trainer.colocated': found {mode!r} and {str(not colocated).lower()}, expected "
            f"{str(colocated).lower()}, which the mode sets by itself, or no mode"
        )
    return {
        **content,
        "pipeline": {**pipeline, **axes},
        "trainer": {**trainer, "colocated": colocated},
        "rollout": _rollout(mode, rollout),
    }


def _rollout(mode: str, rollout: Mapping[str, Any]) -> Mapping[str, Any]:
    """The replicas: for semi-sync, half of them are hybrids where no pools are given."""
    pools, replicas = rollout.get("pools") or (), rollout.get("replicas", _REPLICAS)
    if not isinstance(pools, list | tuple):
        return rollout  # refused by its name later
    marks = [pool.get("hybrid") is True for pool in pools if isinstance(pool, Mapping)]
    if mode != "semi-sync":
        if marks and (mode == "sync") != all(marks):
            raise ConfigError(
                f"keys 'pipeline.mode' and 'rollout.pools': found {mode!r} and pools of which "
                f"{sum(marks)} of {len(marks)} are hybrid, expected {'all' if mode == 'sync' else 'none'}"
            )
        return rollout
    if pools:
        if marks and (all(marks) or not any(marks)):
            raise ConfigError(
                f"keys 'pipeline.mode' and 'rollout.pools': found {mode!r} and {sum(marks)} of {len(marks)} pools with hybrid "
                "= true, expected some, and others whose replicas generate on while the trainer computes"
            )
        return rollout
    if type(replicas) is not int:
        return rollout
    if replicas < 2:
        raise ConfigError(
            f"keys 'pipeline.mode' and 'rollout.replicas': found {mode!r} and {replicas}, expected at least 2: one on the "
            "trainer's devices and one that generates on while the trainer computes"
        )
    hybrids = replicas // 2
    halves = ({"name": "hybrid", "count": hybrids, "hybrid": True}, {"name": "standalone", "count": replicas - hybrids})
    return {**rollout, "replicas": replicas, "pools": list(halves)}
