"""Errors of the data module."""

from __future__ import annotations

import contextlib
import math
import operator
from typing import Any

from tailrace.contracts import TailraceError


class TrajstoreError(TailraceError):
    """Root of this package's errors."""


class PromptFileError(TrajstoreError, ValueError):
    """A prompt file is missing, empty or malformed. The message names the file and line, what was found and expected."""


class ParquetSupportError(TrajstoreError, ImportError):
    """Reading Parquet needs the extra ``parquet``."""


class DatasetsSupportError(TrajstoreError, ImportError):
    """Reading Hugging Face datasets needs the extra ``datasets``."""


class StoreBusyError(TrajstoreError, TimeoutError):
    """Another process has the store open; only one process may."""


class StoreFormatError(TrajstoreError, ValueError):
    """A file is not a trajectory store, or has another format version."""


class StoreClosedError(TrajstoreError, RuntimeError):
    """The store was closed."""


class UnknownTrajectoryError(TrajstoreError, KeyError):
    """The store does not hold this trajectory."""

    def __str__(self) -> str:  # KeyError shows the repr of its message
        return str(self.args[0]) if self.args else ""


class TrajectoryStateError(TrajstoreError, RuntimeError):
    """A trajectory is not in a state that allows the call."""


class AlreadyConsumedError(TrajectoryStateError):
    """A trajectory would be trained on twice."""


class TrajectoryDataError(TrajstoreError, ValueError):
    """Tokens, log-probabilities, rewards or metadata cannot be stored."""


def whole(name: str, value: int) -> int:
    """A whole number as a plain `int`: SQLite would keep one of numpy as its bytes.

    Raises:
        TrajectoryDataError: it is no whole number, or has more than 64 bits.
    """
    number = None
    with contextlib.suppress(TypeError):
        number = operator.index(value)
    if number is None or not -(2**63) <= number < 2**63:
        raise TrajectoryDataError(f"found {name} {value!r}, expected a whole number of at most 64 bits")
    return number


def finite(trajectory: str, reward: Any) -> float:
    """A reward as a plain `float`: SQLite would keep a `float32` of numpy as its bytes.

    Raises:
        TrajectoryDataError: it is no finite number.
    """
    try:
        number = math.nan if isinstance(reward, str) else float(reward)
    except (
        TypeError,
        ValueError,
        RuntimeError,
        OverflowError,
    ):  # numpy and torch say each in their way that it is none
        number = math.nan
    if not math.isfinite(number):
        raise TrajectoryDataError(f"trajectory {trajectory}: found reward {reward!r}, expected a finite number")
    return number


def text(name: str, value: str) -> str:
    """An id or a name that a file can hold.

    Raises:
        TrajectoryDataError: it is no text, or no UTF-8.
    """
    try:
        value.encode()
    except (AttributeError, UnicodeEncodeError):
        raise TrajectoryDataError(f"found {name} {value!r}, expected text that UTF-8 can hold") from None
    return value
