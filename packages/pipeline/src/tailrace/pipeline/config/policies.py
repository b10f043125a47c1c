"""The policies that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.contracts import (
    BASES,
    AdmissionPolicy,
    AxisPolicy,
    BatchingPolicy,
    Facts,
    PluginError,
    check_options,
    check_policy,
    plugins,
)
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


def build_policy(axis: str, choice: Choice, facts: Facts | None = None, factory: Factory | None = None) -> Any:
    """The policy that a configuration chooses.

    Args:
        axis: the policy's axis.
        choice: the policy's name and options.
        facts: what the run knows of itself, from which a policy's class takes the options that the choice does not give.
            None: nothing. A function takes nothing.
        factory: builds the policy; None: the plugin of that name.

    Raises:
        ConfigError: an option is unknown, missing or wrong, the plugin does not exist, or it does not inherit the base class
            of its axis.
    """
    factory = factory or load_policy(axis, choice.name)
    if isinstance(factory, type):
        check_form(axis, choice.name, factory)
    options = {**options_from(factory, facts), **choice.options}
    policy = read_options(factory, options, f"key 'pipeline.{axis}': {choice.name!r}")
    check_form(axis, choice.name, policy)
    return policy


def options_from(factory: Factory, facts: Facts | None) -> Mapping[str, object]:
    """The options that a policy's class takes from the facts; none of a function, or without facts."""
    if facts is None or not (isinstance(factory, type) and issubclass(factory, AxisPolicy)):
        return {}
    return factory.options_from(facts)


def check_form(axis: str, name: str, policy: object) -> None:
    """Check that a policy, or its class, has the base class of its axis; see `check_policy`.

    Raises:
        ConfigError: it has not.
    """
    if axis not in BASES:
        return  # a part of a component
    try:
        check_policy(axis, policy)
        if isinstance(policy, type):
            check_options(policy)
    except PluginError as error:
        raise ConfigError(f"key 'pipeline.{axis}': {name!r}: {error}") from error


def check_surplus(batching: BatchingPolicy, admission: AdmissionPolicy) -> None:
    """Check that admission has room for the groups that batching generates beyond a batch.

    Raises:
        ConfigError: it has not.
    """
    if batching.surplus_groups > admission.surplus_groups:
        raise ConfigError(
            f"keys 'pipeline.batching' and 'pipeline.admission': found {batching.surplus_groups} surplus groups of a batch and "
            f"room for {admission.surplus_groups} of {type(admission).__name__}, expected an admission that makes room for "
            "them, such as 'bounded', or no surplus groups"
        )
