"""A test of a contract suite, marked for one subclass alone."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest


def deep(test: Callable[..., Any]) -> Callable[..., Any]:
    """A test of a contract that a subclass runs with ``--deep`` only; other subclasses run it always."""

    @functools.wraps(test)
    def run(*arguments: Any, **fixtures: Any) -> Any:
        return test(*arguments, **fixtures)

    marked: Callable[..., Any] = pytest.mark.deep(run)
    return marked
