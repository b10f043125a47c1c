"""Messages between a process and its child: an object in JSON on a line of its own. Nothing else is read, whoever wrote it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tailrace.processes.errors import LineError

LINE_BYTES = 1 << 26
"""The longest line, if nobody says otherwise."""


def encode(message: Mapping[str, Any], most_bytes: int = LINE_BYTES) -> bytes:
    """The line of a message, its newline included.

    Raises:
        LineError: it is too long.
        TypeError: it has a value that JSON cannot carry.
    """
    line = json.dumps(message).encode() + b"\n"
    if len(line) > most_bytes:
        raise LineError(f"found a message of {len(line):,} bytes, expected at most {most_bytes:,}")
    return line


def decode(line: bytes | bytearray) -> dict[str, Any]:
    """The message of a line.

    Raises:
        LineError: it is no object in JSON.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):  # bytes that are no UTF-8 are a ValueError too
        message = None
    if not isinstance(message, dict):
        raise LineError(f"found {bytes(line[:80])!r}, expected a line with an object in JSON")
    return message
