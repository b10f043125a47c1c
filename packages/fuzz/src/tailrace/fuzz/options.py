"""Values for the options of a policy that are worth trying, by their types."""

from __future__ import annotations

import enum
import typing
from random import Random
from typing import Any

from tailrace.contracts import Tried


def draw_value(random: Random, kind: Any) -> Any:
    """A value of a type: truths, literals and enumerations as they are, anything else where `Tried` stands beside it.

    None leaves the option as it is, as a configuration would: TOML has no word for it.
    """
    if typing.get_origin(kind) is typing.Annotated:
        kind, *marks = typing.get_args(kind)
        for told in marks:
            if isinstance(told, Tried):
                return random.choice(told.rarely if told.rarely and random.random() < 0.1 else told.values)
    if kind is bool:
        return random.random() < 0.5
    if typing.get_origin(kind) is typing.Literal:
        return random.choice(typing.get_args(kind))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return random.choice(list(kind)).value
    return None
