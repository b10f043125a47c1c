"""What of a configuration may change when a run is resumed, and why the rest may not.

The event log rebuilds the controller, so what decided the commands in it stays as it was. Steps and replicas are changed by an
event in the log (`Resumed`); the other keys that may change concern no decision of the controller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailrace.pipeline.config.loading import parse_setting, validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.target import rooted
from tailrace.pipeline.errors import ConfigError, config_error
from tailrace.pipeline.run.build import trainer_config

MAY_CHANGE = (
    "pipeline.steps",
    "rollout.replicas",
    "rollout.nice",
    "rollout.options",
    "trainer.options",
    "trainer.loss",
    "trainer.advantages",
    "trainer.interface",
    "task.verifier",
    "reward",
    "deadlines",
    "evaluation.controls",
    "tracking",
    "executor.ray_address",
    "executor.replica_gpus",
    "executor.trainer_gpus",
    "executor.scorer_gpus",
    "executor.ranker_gpus",
    "ranker.budget_s",
    "ranker.threads",
    "executor.placement",
    "executor.device",
    "executor.machine_check_s",
    "relay.host",
)
"""Keys, or tables of keys, that a resumed run may have with other values."""
_BEGINNING = ("app", "seed", "task", "model", "warm_start")
_MADE_ONCE = "the run's prompts and first weights were made with it"
_REPLAYED = "the decisions in the event log were made with it"
_ABSENT = object()


def with_changes(before: RunConfig, settings: Sequence[str], *, done: int) -> tuple[RunConfig, dict[str, list[Any]]]:
    """A run's configuration with other values.

    Args:
        before: the configuration so far.
        settings: ``KEY=VALUE`` of each ``--set``; paths are relative to the working directory.
        done: batches that the run has trained on.

    Returns:
        The configuration, and the value before and after by key, for each that is another now.

    Raises:
        ConfigError: a value is wrong, or may not change. The message has a line for each.
    """
    old = before.model_dump(mode="json")
    layers = [(f"--set {text}", rooted(parse_setting(text), Path.cwd())) for text in settings]
    config = validate([("config.json", old), *layers])
    changed = dict(_differences(old, config.model_dump(mode="json")))
    lines = [line for key, (was, now) in changed.items() if (line := _refused(before, key, was, now, done))]
    if lines:
        raise config_error(lines)
    _check_critic(before, config)
    return config, changed


def _check_critic(before: RunConfig, after: RunConfig) -> None:
    """Refuse a critic for a run without one, and the other way round: its checkpoints would not load."""
    had, has = (trainer_config(config).has_critic for config in (before, after))
    if had != has:
        words = ("with a critic", "without one")
        found, expected = words if has else reversed(words)
        raise ConfigError(
            f"keys 'trainer.loss' and 'trainer.advantages': found a trainer {found}, expected one {expected} as before, whose "
            "checkpoints the run has"
        )


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], within: str = ""
) -> Iterator[tuple[str, list[Any]]]:
    for key in dict.fromkeys([*before, *after]):
        was, now = before.get(key, _ABSENT), after.get(key, _ABSENT)
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            yield from _differences(was, now, f"{within}{key}.")
        elif was != now:
            yield f"{within}{key}", [None if value is _ABSENT else value for value in (was, now)]


def _refused(before: RunConfig, key: str, was: Any, now: Any, done: int) -> str:
    """Why a key may not have another value; empty if it may."""
    shown = f"key {key!r}: found {now!r}, expected {was!r} as before"
    if key == "deadlines.silent_s":
        return f"{shown}: {_REPLAYED}"
    if key == "faults":
        return f"{shown}: those of this driver are given by --kill, --hang, --stall and --raise"
    if not any(key == allowed or key.startswith(f"{allowed}.") for allowed in MAY_CHANGE):
        why = _MADE_ONCE if key.partition(".")[0] in _BEGINNING else _REPLAYED
        return f"{shown}: {why}"
    if key == "pipeline.steps" and now < done:
        return f"key {key!r}: found {now}, expected at least {done}: so many batches are trained on already"
    if key == "rollout.replicas" and before.pipeline.provisioning.name != "static":
        return f"{shown}: the policy {before.pipeline.provisioning.name!r} decides how many replicas there are"
    if key == "task.verifier" and before.task.generated:
        return f"{shown}: the generated task {str(before.task)!r} has its own verifier"
    return ""
