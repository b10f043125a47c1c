"""The policies that a configuration names."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from tailrace.contracts import PluginError, check_policy, plugins
from tailrace.contracts.policies import BASES
from tailrace.pipeline.config.models import Choice
from tailrace.pipeline.config.options import Factory, read_options
from tailrace.pipeline.errors import ConfigError


def load_policy(axis: str, name: str) -> Factory:
    """The class or function that a plugin names.

    Raises:
        ConfigError: the axis has no plugin of this name.
    """
    try:
        factory: Factory = plugins.load(f"tailrace.{axis}", name)
    except PluginError as error:
        raise ConfigError(f"key 'pipeline.{axis}': {error}") from error
    return factory


def build_policy(
    axis: str,
    choice: Choice,
    given: Mapping[str, Any] | None = None,
    where_taken: Mapping[str, Any] | None = None,
    factory: Factory | None = None,
) -> Any:
    """The policy that a configuration chooses.

    Args:
        axis: the policy's axis.
        choice: the policy's name and options.
        given: options that follow from the rest of the configuration. The policy must have them.
        where_taken: further such options, used only if the policy has them.
        factory: builds the policy; None: the plugin of that name.

    Raises:
        ConfigError: an option is unknown, missing or wrong, the plugin does not exist, or it does not inherit the base class
            of its axis.
    """
    factory = factory or load_policy(axis, choice.name)
    if isinstance(factory, type):
        check_form(axis, choice.name, factory)
    takes = inspect.signature(factory).parameters
    offered = {name: value for name, value in (where_taken or {}).items() if name in takes}
    options = {**offered, **(given or {}), **choice.options}
    policy = read_options(factory, options, f"key 'pipeline.{axis}': {choice.name!r}")
    check_form(axis, choice.name, policy)
    return policy


def check_form(axis: str, name: str, policy: object) -> None:
    """Check that a policy, or its class, has the base class of its axis; see `check_policy`.

    Raises:
        ConfigError: it has not.
    """
    if axis not in BASES:
        return  # a part of a component
    try:
        check_policy(axis, policy)
    except PluginError as error:
        raise ConfigError(f"key 'pipeline.{axis}': {name!r}: {error}") from error
