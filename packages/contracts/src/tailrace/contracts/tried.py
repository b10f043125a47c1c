"""What a policy says of its own options, so that fuzzing tries values that make sense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Tried:
    """Values that fuzzing gives an option: ``period_s: Annotated[float, Tried((0.5, 2.0))] = 5.0``.

    Args:
        values: one of them is drawn; one that stands there twice is drawn twice as often, and None leaves the option out.
        rarely: one of these is drawn one time in ten instead: for values that soon end a run.
    """

    values: tuple[Any, ...]
    rarely: tuple[Any, ...] = ()
