"""Errors of the data module."""

from __future__ import annotations

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
