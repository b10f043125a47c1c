"""Tokens and log-probabilities as compact little-endian bytes."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Literal

from tailrace.trajstore.errors import TrajectoryDataError

Precision = Literal["float32", "float64"]

_ID_CODE = "I"  # unsigned, 4 bytes on every platform that we support


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids, four bytes each.

    Raises:
        TrajectoryDataError: an id is not an integer from 0 to 2**32 - 1.
    """
    try:
        # of bytes, which are numbers too, an array would take four for one
        return _to_bytes(array(_ID_CODE, list(tokens) if isinstance(tokens, bytes | bytearray) else tokens))
    except (OverflowError, TypeError) as error:
        raise TrajectoryDataError(f"found a token id that is not an integer from 0 to 2**32 - 1: {error}") from error


def unpack_tokens(data: bytes) -> tuple[int, ...]:
    """The token ids that `pack_tokens` packed."""
    return tuple(_from_bytes(_ID_CODE, data))


def pack_logprobs(logprobs: Sequence[float], precision: Precision) -> bytes:
    """Log-probabilities: four bytes each with ``"float32"``, or where that keeps all of them exactly; eight bytes otherwise.

    Engines compute in single precision, so that four are enough for what they say.

    Raises:
        TrajectoryDataError: one is not a number.
    """
    try:
        narrow = array("f", logprobs)
        if precision == "float32":
            return _to_bytes(narrow)
        wide = array("d", logprobs)
    except (OverflowError, TypeError) as error:
        raise TrajectoryDataError(f"found a log-probability that is not a number: {error}") from error
    return _to_bytes(narrow if array("d", narrow) == wide else wide)


def unpack_logprobs(data: bytes, count: int) -> tuple[float, ...]:
    """The log-probabilities that `pack_logprobs` packed for `count` tokens."""
    return tuple(_from_bytes("d" if len(data) == 8 * count else "f", data))


def join_logprobs(parts: Sequence[tuple[bytes, int]]) -> bytes:
    """Packed log-probabilities of several runs of so many tokens as those of one: in eight bytes each if any part is."""
    if all(len(data) == 4 * count for data, count in parts):
        return b"".join(data for data, _ in parts)
    return b"".join(_to_bytes(array("d", unpack_logprobs(data, count))) for data, count in parts)


def same_logprobs(data: bytes, logprobs: Sequence[float], precision: Precision) -> bool:
    """Whether `logprobs` are what was packed, though perhaps in eight bytes each since others were packed with them."""
    found = pack_logprobs(logprobs, precision)
    return data == (found if len(found) == len(data) else join_logprobs([(found, len(logprobs)), (bytes(8), 1)])[:-8])


def highest_token(data: bytes) -> int:
    """The highest of packed token ids; -1 if there is none."""
    return max(_from_bytes(_ID_CODE, data), default=-1)


def all_finite(data: bytes, count: int) -> bool:
    """Whether all of packed log-probabilities are finite."""
    values = _from_bytes("d" if len(data) == 8 * count else "f", data)
    return math.isfinite(sum(values)) or all(map(math.isfinite, values))  # a sum of large ones may overflow


def _to_bytes(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def _from_bytes(code: str, data: bytes) -> array[Any]:
    values: array[Any] = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values
