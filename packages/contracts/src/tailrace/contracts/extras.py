"""An optional library that is missing: one line that says how to install it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tailrace.contracts.errors import TailraceError


class MissingExtraError(TailraceError, ImportError):
    """A library that comes with an extra is not installed. The message has the pip line."""


@contextmanager
def extra(distribution: str, name: str) -> Iterator[None]:
    """Import optional libraries inside this context: ``with extra("tailrace-paramserver", "torch"): import torch``.

    A library that is there and breaks while it is imported raises its own error.

    Args:
        distribution: the distribution that has the extra.
        name: the extra's name.

    Raises:
        MissingExtraError: a module is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"found no module {error.name!r}, expected that of an extra: pip install '{distribution}[{name}]'"
        ) from error


def need_extra(distribution: str, name: str, *modules: str) -> None:
    """Check, without importing them, that the modules of an extra are installed: before long work whose end needs them.

    Raises:
        MissingExtraError: a module is not installed.
    """
    with extra(distribution, name):
        for module in modules:
            if find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named {module!r}", name=module)
