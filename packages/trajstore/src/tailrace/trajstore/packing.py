"""Tokens and log-probabilities as compact little-endian bytes."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Any, Literal

from tailrace.trajstore.errors import TrajectoryDataError

Precision = Literal["float32", "float64"]

_ID_CODE = "I"  # unsigned, 4 bytes on every platform that we support
_CODES: dict[Precision, str] = {"float32": "f", "float64": "d"}


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Token ids, four bytes each.

    Raises:
        TrajectoryDataError: an id is not an integer from 0 to 2**32 - 1.
    """
    try:
        return _to_bytes(array(_ID_CODE, tokens))
    except (OverflowError, TypeError) as error:
        raise TrajectoryDataError(f"found a token id that is not an integer from 0 to 2**32 - 1: {error}") from error


def unpack_tokens(data: bytes) -> tuple[int, ...]:
    """The token ids that `pack_tokens` packed."""
    return tuple(_from_bytes(_ID_CODE, data))


def pack_logprobs(logprobs: Sequence[float], precision: Precision) -> bytes:
    """Log-probabilities, four or eight bytes each; eight keep them exactly.

    Raises:
        TrajectoryDataError: one is not a number.
    """
    try:
        return _to_bytes(array(_CODES[precision], logprobs))
    except (OverflowError, TypeError) as error:
        raise TrajectoryDataError(f"found a log-probability that is not a number: {error}") from error


def unpack_logprobs(data: bytes, count: int) -> tuple[float, ...]:
    """The log-probabilities that `pack_logprobs` packed for `count` tokens, in either precision."""
    return tuple(_from_bytes("d" if len(data) == 8 * count else "f", data))


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
