"""The types of fields of a configuration file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)
"""How a table of a configuration file is read: nothing unknown, nothing converted, no number that is none."""
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]  # 31 years; some more, and no thread can wait for so long
Seed = Annotated[int, Field(ge=0, le=1 << 62)]  # as torch and NumPy take them, and some more than it for ranks
Share = Annotated[float, Field(gt=0)]


def as_tuple(value: Any) -> Any:
    """A list of TOML as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _as_path(value: Any) -> Any:
    return Path(value) if isinstance(value, str) else value


FilePath = Annotated[Path, BeforeValidator(_as_path)]
