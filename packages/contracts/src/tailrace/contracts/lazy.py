"""Packages that load a file when one of its names is first asked for, so that a child process loads what it needs alone."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from importlib import import_module
from typing import Any


def loads_lazily(package: str, names: Container[str], files: Sequence[str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package, which keeps each name that it finds.

    Args:
        package: the package's ``__name__``.
        names: what it exports.
        files: its modules, relative to it, in the order in which a name is looked for: those first that load few others.

    Raises:
        AttributeError: on a call, the package exports no such name.
    """

    def find(name: str) -> Any:
        if name in names:
            for file in files:
                found = vars(import_module(f"{package}.{file}"))
                if name in found:
                    setattr(import_module(package), name, found[name])
                    return found[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
