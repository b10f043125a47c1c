"""Plugins by entry point. Built-ins are registered like those of third parties; only the selected one is loaded."""

from __future__ import annotations

import functools
import sys
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any

from tailrace.contracts.errors import PluginError, expected_one_of


@functools.cache
def _installed(path: tuple[str, ...]) -> Any:  # noqa: ARG001 - the result depends on it
    """All entry points of the installed distributions. Reading them takes 8 ms, for one group as for all."""
    return entry_points()


@functools.cache
def _registered(group: str, path: tuple[str, ...]) -> EntryPoints:
    found: EntryPoints = _installed(path).select(group=group)
    return found


def _points(group: str) -> EntryPoints:
    return _registered(group, tuple(sys.path))


def names(group: str) -> list[str]:
    """The names that are registered in an entry-point group, for example ``"tailrace.sync"``."""
    return sorted({point.name for point in _points(group)})


def reference(group: str, name: str) -> str:
    """What a plugin's entry point names, as ``module:object``, without importing it.

    Raises:
        PluginError: no distribution registers the name, or two do.
    """
    return _point(group, name).value


def load(group: str, name: str) -> Any:
    """The object that a plugin's entry point names.

    Raises:
        PluginError: no distribution registers the name, two do, or its module cannot be imported.
    """
    point = _point(group, name)
    try:
        return point.load()
    except Exception as error:
        owner = point.dist.name if point.dist else "an unknown distribution"
        raise PluginError(
            f"plugin {name!r} of group {group} ({owner}) does not load: {type(error).__name__}: {error}"
        ) from error


def _point(group: str, name: str) -> EntryPoint:
    points: list[EntryPoint] = list(_points(group).select(name=name))
    if not points:
        raise PluginError(f"found {name!r} in group {group}, {expected_one_of(name, names(group))}")
    if len({point.value for point in points}) > 1:
        owners = ", ".join(sorted(point.dist.name if point.dist else "?" for point in points))
        raise PluginError(
            f"{name!r} in group {group} is registered by several distributions: {owners}; uninstall all but one"
        )
    return points[0]
