"""What a worker is told to load: this interpreter's registrations, or the file of an adapter for another interpreter."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tailrace.contracts import PluginError, plugins
from tailrace.environment.errors import SetupError
from tailrace.environment.protocol import GROUP


def environment_names() -> list[str]:
    """The registered environments."""
    return plugins.names(GROUP)


def for_worker(environment: str, python: str) -> str:
    """How a worker finds the environment.

    Another interpreter need not have the package that registers an environment: it is handed the module's file, which may
    import the standard library and what that interpreter has. A name that is not registered here is looked up there.

    Args:
        environment: a registered name, ``module:Class`` or ``file.py:Class``.
        python: the worker's interpreter; empty: this one.

    Raises:
        SetupError: no environment has this name, or there is no such file.
    """
    source, colon, name = environment.rpartition(":")
    if colon:
        if source.endswith(".py"):
            if not Path(source).is_file():
                raise SetupError(f"found no file {source!r}, expected one with the environment {name}")
            return f"{Path(source).absolute()}:{name}"
        return environment
    if python and environment not in environment_names():
        return environment
    try:
        reference = plugins.reference(GROUP, environment)
    except PluginError as error:
        raise SetupError(str(error)) from error
    if not python:
        return reference
    module, _, name = reference.partition(":")
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise SetupError(
            f"found the environment {environment!r} in {module}, which has no file for another interpreter"
        )
    return f"{spec.origin}:{name}"
