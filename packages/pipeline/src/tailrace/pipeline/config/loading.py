"""Reads configurations: an app's quick start, a TOML file over it, and ``--set`` over both."""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a dictionary.

    Raises:
        ConfigError: it is missing or not TOML.
    """
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise ConfigError(f"{path}: no such file; expected a TOML configuration or the name of an app") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path}: found a directory, expected a TOML configuration") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from error


def parse_setting(text: str) -> dict[str, Any]:
    """``trainer.options.lr=1e-6`` as a nested dictionary. The value is TOML; a bare word is a string.

    Raises:
        ConfigError: there is no ``=`` or no key.
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
    """`over` laid on `base`, table by table. A policy by name replaces the one below with its options."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            replaces = "name" in value and value.get("name") != below.get("name")
            merged[key] = dict(value) if replaces else merge(below, value)
        else:
            merged[key] = value
    return merged


def validate(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> RunConfig:
    """One configuration from layers, the later over the earlier.

    Args:
        layers: (where it comes from, its content).

    Raises:
        ConfigError: one line with the file, the key, what was found and what was expected.
    """
    merged: dict[str, Any] = {}
    for _, content in layers:
        merged = merge(merged, content)
    try:
        return RunConfig.model_validate(_lists_to_tuples(merged))
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        source = next((name for name, content in reversed(layers) if _has(content, path)), layers[-1][0])
        raise ConfigError(f"{source}: {_explain(path, first)}") from None


def _lists_to_tuples(content: dict[str, Any]) -> dict[str, Any]:
    return {
        key: tuple(value) if key == "faults" and isinstance(value, list) else value for key, value in content.items()
    }


def _has(content: Mapping[str, Any], path: Sequence[str]) -> bool:
    value: Any = content
    for part in path:
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True


def _explain(path: list[str], error: Any) -> str:
    key = ".".join(path)
    if error["type"] == "extra_forbidden":
        known = _keys_beside(path)
        close = difflib.get_close_matches(path[-1], known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"found the unknown key {key!r}, expected one of {', '.join(known)}{hint}"
    return f"key {key!r}: found {error['input']!r}, expected: {error['msg'].removeprefix('Input should be ')}"


def _keys_beside(path: Sequence[str]) -> list[str]:
    model: type[BaseModel] = RunConfig
    for part in path[:-1]:
        field = model.model_fields.get(part)
        if field is None:
            return []
        for kind in _kinds(field.annotation):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                model = kind
    return sorted(model.model_fields)


def _kinds(annotation: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    return typing.get_args(annotation) if is_union else (annotation,)
