"""Describes every key of a configuration: meaning, type, default, value, and the value's source."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from tailrace.contracts import plugins
from tailrace.pipeline.config.loading import has_key, validate
from tailrace.pipeline.config.models import Choice, RunConfig

DEFAULT = "default"
Layer = tuple[str, Mapping[str, Any]]

# Tables of options, and the dataclass that each is read into.
_OPTIONS = {
    "model.tokenizer": "tailrace.trainer.warmstart.TokenizerShape",
    "warm_start.options": "tailrace.trainer.warmstart.WarmStartConfig",
    "rollout.options": "tailrace.rollout.EngineOptions",
    "trainer.options": "tailrace.trainer.TrainerConfig",
}
# Options that another key decides.
_ELSEWHERE = {
    *(f"pipeline.batching.{name}" for name in ("samples", "prompts", "shares", "shuffle_seed")),
    *(
        f"pipeline.provisioning.{name}"
        for name in ("count", "max_tokens", "tp", "heads", "slots", "trajectories", "trainer_devices")
    ),
    *(f"pipeline.{axis}.k{number}" for axis in ("routing", "relocation", "provisioning") for number in range(1, 5)),
    "pipeline.routing.pool_costs",
    "pipeline.detection.silent_s",
    *(f"warm_start.options.{name}" for name in ("steps", "batch", "lr", "processes", "seed")),
    *(f"rollout.options.{name}" for name in ("seed", "device")),
    *(f"trainer.options.{name}" for name in ("adapter", "critic", "cells", "seed", "device", "max_response_tokens")),
    *(f"trainer.options.{name}" for name in ("loss", "loss_options", "advantages", "advantages_options")),
}
_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "array": "list"}


@dataclass(frozen=True, slots=True)
class Key:
    """One key.

    Args:
        name: the key with its tables, as for ``--set``.
        kind: the allowed values, in words.
        default: the default as a JSON value; None for none.
        value: the value in this configuration, as a JSON value.
        source: the layer that the value is from; ``default`` if no layer has the key.
        meaning: the key's meaning, with its unit.
    """

    name: str
    kind: str
    default: Any
    value: Any
    source: str
    meaning: str


def described(layers: Sequence[Layer]) -> list[Key]:
    """Every key, in the order of the tables. The options of a policy follow it.

    Args:
        layers: (source, content) of each layer; later layers override earlier ones.

    Raises:
        ConfigError: the layers are not a valid configuration.
        PluginError: a policy cannot be loaded.
    """
    config = validate(layers)
    return list(_keys(RunConfig, config, "", layers))


def schema() -> dict[str, Any]:
    """The JSON schema of a configuration file, for editors."""
    found = RunConfig.model_json_schema()
    choice = found["$defs"]["Choice"]
    found["$defs"]["Choice"] = {"anyOf": [{"type": "string"}, choice], "description": choice["description"]}
    found["properties"]["base"] = {
        "type": "string",
        "description": "what this file is laid over: quickstart, or a TOML file beside this one",
    }
    return found


def _keys(model: type[BaseModel], value: Any, above: str, layers: Sequence[Layer]) -> Iterator[Key]:
    schema = model.model_json_schema()
    for field, info in model.model_fields.items():
        name, here = above + field, getattr(value, field)
        inner = _model_of(info)
        if inner is not None and issubclass(inner, Choice):
            kind = "a plugin's name, or a table with the name and options"
            yield _key(name, info, kind, here.name, layers)
            yield from _fields(plugins.load(f"tailrace.{field}", here.name), name, here.options, layers)
        elif inner is not None and (here is not None or info.default is not None):
            yield from _keys(inner, here, f"{name}.", layers)
        elif name in _OPTIONS:
            module, _, read_as = _OPTIONS[name].rpartition(".")
            yield from _fields(getattr(importlib.import_module(module), read_as), name, here, layers)
        else:
            yield _key(name, info, _kind(schema["properties"][field]), here, layers)


def _key(name: str, info: FieldInfo, kind: str, value: Any, layers: Sequence[Layer]) -> Key:
    default = None if info.is_required() else info.default.name if isinstance(info.default, Choice) else info.default
    return Key(name, kind, _plain(default), _plain(value), _source(name, layers), info.description or "")


def _fields(kind: Any, name: str, given: Mapping[str, Any], layers: Sequence[Layer]) -> Iterator[Key]:
    """The keys of options that are read into a dataclass."""
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return
    shapes = TypeAdapter(kind).json_schema()["properties"]
    bases = reversed(kind.__mro__)
    meanings = {key: text for base in bases for key, text in argument_meanings(base).items() if "see `" not in text}
    for field in dataclasses.fields(kind):
        key = f"{name}.{field.name}"
        if field.init and key not in _ELSEWHERE:
            default = None if field.default is dataclasses.MISSING else _plain(field.default)
            value = _plain(given.get(field.name, default))
            meaning = meanings.get(field.name, "")
            yield Key(key, _kind(shapes[field.name]), default, value, _source(key, layers), meaning)


def argument_meanings(documented: object) -> dict[str, str]:
    """The texts of a docstring's ``Args:``, by argument."""
    found: dict[str, str] = {}
    _, _, block = (inspect.getdoc(documented) or "").partition("Args:\n")
    names: list[str] = []
    for line in block.splitlines():
        begins = re.match(r"    (\w+(?:, \w+)*): (.*)", line)
        if begins:
            names = begins[1].split(", ")
            found |= dict.fromkeys(names, begins[2])
        elif line.startswith("        ") and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        elif line.strip():
            break
    return found


def _model_of(info: FieldInfo) -> type[BaseModel] | None:
    if typing.get_origin(info.annotation) is tuple:  # a list of tables is one key
        return None
    for kind in (info.annotation, *getattr(info.annotation, "__args__", ())):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _kind(shape: Mapping[str, Any]) -> str:
    if "anyOf" in shape:
        return " or ".join(_kind(each) for each in shape["anyOf"] if each.get("type") != "null")
    if "enum" in shape:
        return " or ".join(map(str, shape["enum"]))
    if "$ref" in shape or shape.get("type") == "object":
        return "table"
    words = "path" if shape.get("format") == "path" else _WORDS.get(str(shape.get("type")), "any")
    limits = [
        f"{word} {shape[key]:g}"
        for key, word in (("exclusiveMinimum", "above"), ("minimum", "from"), ("maximum", "to"))
        if key in shape
    ]
    return " ".join([words, *limits])


def _source(name: str, layers: Sequence[Layer]) -> str:
    for source, content in reversed(layers):
        if has_key(content, name.split(".")):
            return source
    return DEFAULT


def _plain(value: Any) -> Any:
    def plain(inner: Any) -> Any:
        return inner.model_dump(mode="json", exclude_none=True) if isinstance(inner, BaseModel) else str(inner)

    return json.loads(json.dumps(value, default=plain))
