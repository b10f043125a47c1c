"""What a run is, in a few words: the first thing that a page says of it."""

from __future__ import annotations

from typing import Any

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.environments import has_own_rows

SIMULATED = "A simulated run: times are modelled, lengths and rewards are drawn, and nothing learns."


def facts_of(config: RunConfig, *, simulated: bool) -> dict[str, Any]:
    """App, model, task and seed."""
    return {
        "app": config.app,
        "model": str(config.fleet.get("model") or config.fleet.get("profile")) if simulated else _model(config),
        "task": "drawn lengths" if simulated else _task(config),
        "seed": config.seed,
    }


def _model(config: RunConfig) -> str:
    path, small = config.model.path, config.model.small
    if path is not None:
        return str(path)
    return "small Qwen3" if small is None else f"small Qwen3, {small.layers} layers of {small.hidden}"


def _task(config: RunConfig) -> str:
    return f"rows of {config.environment.name}" if has_own_rows(config) else str(config.task)
