"""JSON of what commands print for scripts."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any


def json_text(value: Any) -> str:
    """A value as JSON, which has neither infinities nor NaN: they are null. Keys that are no text, and dates, are text.

    Args:
        value: dictionaries, lists and scalars; a Decimal is a number.
    """
    return json.dumps(_plain(value), default=str, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
