"""What the tables of the simulator's files have alike: they are strict, and so are the types of their fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class Strict(BaseModel):
    """A table in which an unknown key or a wrong type is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def as_tuples(value: Any) -> Any:
    """Convert lists of TOML to tuples, which frozen models need."""
    return tuple(as_tuples(part) for part in value) if isinstance(value, (list, tuple)) else value


def interpolated(points: Sequence[tuple[float, float]], version: float) -> float:
    """The value at a version: linear between [version, value] points with versions increasing, constant outside."""
    before = points[0]
    for point in points:
        if point[0] >= version:
            if point is before:
                return point[1]
            share = (version - before[0]) / (point[0] - before[0])
            return before[1] + share * (point[1] - before[1])
        before = point
    return before[1]
