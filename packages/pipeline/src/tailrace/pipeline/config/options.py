"""Reads a plugin's options into its dataclass. An unknown option or a value of the wrong type is an error of one line."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import ErrorDetails

from tailrace.contracts import expected_one_of, plugins
from tailrace.pipeline.errors import ConfigError, config_error

Factory = Callable[..., Any]


def read_options(kind: Factory, options: Mapping[str, Any], where: str) -> Any:
    """The object that a plugin's class or function builds from its options.

    Options are checked against the types of the fields or arguments, strictly: text does not pass as a number; a whole number
    passes as a float. Arguments without a type are not checked.

    Args:
        kind: the plugin's class or function.
        options: the options by name.
        where: key and plugin, for the message.

    Raises:
        ConfigError: an option is unknown, missing or of the wrong type, or the plugin refuses it; a line for each.
    """
    read = check_options(kind, options, where)
    try:
        return kind(**{name: getattr(read, name) for name in options})
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: {error}") from error


def check_options(kind: Factory, options: Mapping[str, Any], where: str) -> BaseModel:
    """The options with their types, without building anything: for a class whose objects start something.

    Args:
        kind, options, where: see `read_options`.

    Raises:
        ConfigError: an option is unknown, missing or of the wrong type; a line for each.
    """
    model = _model(kind)
    try:
        # Validated as JSON, in which a list may stand for a tuple and a text for a path, and nothing else is converted.
        return model.model_validate_json(json.dumps(options), strict=True)
    except ValidationError as error:
        known = [*model.model_fields]
        lines = dict.fromkeys(
            _explained(each, known) for each in error.errors()
        )  # a union has an error for each member
        raise config_error([f"{where}: {line}" for line in lines]) from None
    except (TypeError, ValueError) as error:  # no JSON
        raise ConfigError(f"{where}: {error}") from error


@lru_cache(maxsize=256)
def options_of(kind: Factory) -> Mapping[str, Any]:
    """The options of a class or function with their types, the marks of `Annotated` included."""
    is_plain_class = isinstance(kind, type) and not dataclasses.is_dataclass(kind)
    try:
        hints = typing.get_type_hints(kind.__init__ if is_plain_class else kind, include_extras=True)
    except NameError:  # A type that is imported for a type checker alone cannot be checked here.
        hints = {}
    parameters = inspect.signature(kind).parameters.values()
    named = (one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))
    return {name: hints.get(name, Any) for name in named}


@lru_cache(maxsize=256)
def _model(kind: Factory) -> type[BaseModel]:
    """The options as a model. The object itself is built by its class."""
    parameters = inspect.signature(kind).parameters
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    fields: dict[str, Any] = {
        name: (type_, ... if parameters[name].default is inspect.Parameter.empty else None)
        for name, type_ in options_of(kind).items()
    }
    config = ConfigDict(
        extra="allow" if takes_any else "forbid",
        arbitrary_types_allowed=True,
        allow_inf_nan=False,
        protected_namespaces=(),
    )
    return create_model("Options", __config__=config, **fields)


def registered(key: str, group: str, name: str) -> None:
    """Check that a plugin is registered, without loading it.

    Args:
        key: the configuration's key that names the plugin.
        group: the entry-point group.
        name: the plugin's name.

    Raises:
        ConfigError: no plugin of the group has this name.
    """
    known = plugins.names(group)
    if name not in known:
        raise ConfigError(f"key {key!r}: found {name!r}, {expected_one_of(name, known)}")


def _unknown(name: str, known: list[str]) -> str:
    return f"found the unknown option {name!r}, {expected_one_of(name, known)}"


def _explained(error: ErrorDetails, known: list[str]) -> str:
    if error["type"] == "value_error":  # the plugin's own words
        return str(error["ctx"]["error"])
    name = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return _unknown(name, known)
    if error["type"] == "missing":
        return f"found no option {name!r}, expected one"
    return f"option {name!r}: found {error['input']!r}, expected: {error['msg'].removeprefix('Input should be ')}"
