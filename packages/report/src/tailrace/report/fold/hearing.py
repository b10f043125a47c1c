"""How a fold says which events and commands it wants to hear of, so that an instant is gone through once for all folds.

The history takes a whole instant in before any other fold hears of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Hears = dict[type, Callable[[float, Any], None]]
"""What is called with the time and an event or command of a kind."""


def audience(*folds: Hears) -> dict[type, tuple[Callable[[float, Any], None], ...]]:
    """Who hears of which kind, in the order of the folds."""
    found: dict[type, tuple[Callable[[float, Any], None], ...]] = {}
    for hears in folds:
        for kind, hear in hears.items():
            found[kind] = (*found.get(kind, ()), hear)
    return found
