"""Reads configurations: an app's quick start, a TOML file over it, ``--set`` over both, and modes as presets of their keys."""

from __future__ import annotations

import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tailrace.contracts import expected_one_of
from tailrace.controller.spec import AXES
from tailrace.pipeline.config.determinism import with_determinism
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError, config_error

_NAMED = {*AXES, "detection", "sampler", "eviction", "loss", "advantages"}
_ONE_OR_SEVERAL = {"rollout"}  # of a fleet: replicas that are alike, or pools of them
_OF_RAY = {
    "ray_address",
    "machines",
    "placement",
    "replica_gpus",
    "trainer_gpus",
    "scorer_gpus",
    "ranker_gpus",
}  # mean nothing to another host
_TASKS = {"name", "mix", "train", "sources"}  # keys that each say what is trained on


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary.

    Raises:
        ConfigError: the file is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; expected a TOML configuration or the name of an app") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: found a directory, expected a TOML configuration") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}: found the byte {error.object[error.start]:#x} in line {line}, expected UTF-8"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def parse_setting(text: str) -> dict[str, Any]:
    """``trainer.options.lr=1e-6`` as a nested dictionary. The value is TOML; a bare word is a string.

    Raises:
        ConfigError: the text has no ``=`` or no key.
    """
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"--set {text}: expected key=value, for example pipeline.steps=20")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for part in reversed(parts):
        parsed = {part: parsed}
    assert isinstance(parsed, dict)
    return parsed


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over`, table by table.

    A policy with another name replaces the one below and its options. Another host replaces the keys that are Ray's alone, a
    fleet's measured machine the model below it.
    Where a key is one table or several alike (``rollout`` of a fleet), one table is laid over each of several, and each of
    several over one.
    """
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, str) and key in _NAMED:
            below = {"name": below}  # a policy given by its name alone
        if key in _ONE_OR_SEVERAL and isinstance(value, Mapping) and isinstance(below, list):
            merged[key] = [merge(each, value) for each in below]
        elif key in _ONE_OR_SEVERAL and isinstance(value, list) and isinstance(below, Mapping):
            merged[key] = [merge(below, each) for each in value]
        elif isinstance(value, Mapping) and isinstance(below, Mapping):
            if (
                key == "task" and "name" not in value and not _TASKS.isdisjoint(value)
            ):  # it takes the place of that below
                below = {name: each for name, each in below.items() if name not in _TASKS - value.keys()}
            # a measured machine takes the place of a modelled one
            if key == "fleet" and "profile" in value and "model" not in value:
                below = {name: each for name, each in below.items() if name != "model"}
            replaces = "name" in value and value.get("name") != below.get("name")
            if replaces and key == "executor":  # hosts have the other keys in common
                replaces, below = False, {name: each for name, each in below.items() if name not in _OF_RAY}
            merged[key] = dict(value) if replaces else merge(below, value)
        else:
            merged[key] = value
    return merged


def validate(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> RunConfig:
    """One configuration from layers; later layers override earlier ones.

    Args:
        layers: (source, content) of each layer.

    Raises:
        ConfigError: a value is wrong, or not as the mode has it. The message has a line for each fault, with the file, the key,
            what was found and what was expected.
    """
    merged: dict[str, Any] = {}
    layers = with_determinism(layers, merge)
    for _, content in layers:
        merged = merge(merged, content)
    try:
        return RunConfig.model_validate(_lists_to_tuples(with_mode(merged)))
    except ValidationError as error:
        lines = []
        for fault in error.errors():
            path = [str(part) for part in fault["loc"]]
            source = next((name for name, content in reversed(layers) if has_key(content, path)), layers[-1][0])
            lines.append(f"{source}: {explain(RunConfig, path, fault)}")
        raise config_error(lines) from None


def _lists_to_tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if key == "faults" and isinstance(value, list) else value for key, value in content.items()
    }


def has_key(content: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Whether a table has a key, given by the tables that it is in and its name."""
    value: Any = content
    for part in path:
        if isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        elif isinstance(value, Mapping) and part in value:
            value = value[part]
        else:
            return False
    return True


def explain(model: type[BaseModel], path: Sequence[str], error: Any, *, within: str = "") -> str:
    """The message of a validation error: the key, what was found and what was expected.

    Args:
        model: the model of the whole content.
        path: the path of the key in it.
        error: pydantic's description of the error.
        within: prefix of the key in the file, with a dot.
    """
    key = within + ".".join(path)
    if error["type"] == "extra_forbidden":
        return f"found the unknown key {key!r}, {expected_one_of(path[-1], _keys_beside(model, path))}"
    expected = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    expected = expected.replace("a valid tuple", "a list")  # as TOML calls it
    return f"key {key!r}: found {error['input']!r:.60}, expected: {expected}"


def _keys_beside(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    for part in path[:-1]:
        if part.isdecimal():  # the place in a list of tables
            continue
        field = model.model_fields.get(part)
        if field is None:
            return []
        for kind in kinds_of(field.annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                model = kind
    return sorted(model.model_fields)


def kinds_of(annotation: Any) -> tuple[Any, ...]:
    """The types that a field's annotation names: those of a union or a tuple, or its one."""
    is_several = typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple)
    return typing.get_args(annotation) if is_several else (annotation,)


# Modes: sync, semi-sync and async as presets of single keys (RobustRL, sections 2.1 and 7.1; Figure 1).
#
#     sync        hybrids only: they generate a batch, yield to the trainer when all of it is complete, and come back
#     semi-sync   hybrids, which yield when half of the batch is complete, and standalone replicas, which generate on
#     async       standalone replicas only, one step ahead of the trainer, which has devices of its own
#
# A mode says nothing that its keys could not say. A key that says otherwise is refused; options of a policy are free.

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
