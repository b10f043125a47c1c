"""The content of a predictor's files: JSON and tensors, read with one typed error for all that can be wrong with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tailrace.ranker.errors import DamagedRankerError


def to_json(value: Any) -> bytes:
    """JSON of plain data, the same bytes for the same data."""
    return (json.dumps(value, sort_keys=True, allow_nan=False) + "\n").encode()


def file_of(files: Mapping[str, bytes], name: str) -> bytes:
    """One file's bytes.

    Raises:
        DamagedRankerError: it is missing.
    """
    if name not in files:
        raise DamagedRankerError(f"found no {name}, expected it beside {', '.join(sorted(files)) or 'others'}")
    return files[name]


def from_json(files: Mapping[str, bytes], name: str, *keys: str) -> dict[str, Any]:
    """A JSON object.

    Args:
        files: the files.
        name: which.
        keys: what it must have.

    Raises:
        DamagedRankerError: the file or a key is missing, or it is no JSON object.
    """
    try:
        value = json.loads(file_of(files, name))
    except ValueError as error:
        raise DamagedRankerError(f"{name}: found no JSON ({error}), expected an object") from error
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing or not isinstance(value, dict):
        raise DamagedRankerError(f"{name}: found no {', '.join(missing) or 'object'}, expected what was saved")
    return value
