"""What goes wrong in the data module."""

from __future__ import annotations

from tailrace.contracts import TailraceError


class TrajstoreError(TailraceError):
    """Root of this package's errors."""


class PromptFileError(TrajstoreError, ValueError):
    """A prompt file is missing, empty or not what it should be. The message names file, line, found and expected."""


class ParquetSupportError(TrajstoreError, ImportError):
    """Reading Parquet needs the extra ``parquet``."""


class StoreBusyError(TrajstoreError, TimeoutError):
    """Another process has the store open: it has a single writer."""


class StoreFormatError(TrajstoreError, ValueError):
    """A file is not a trajectory store, or was written by another version of it."""


class StoreClosedError(TrajstoreError, RuntimeError):
    """The store was closed."""


class UnknownTrajectoryError(TrajstoreError, KeyError):
    """The store does not hold this trajectory."""

    def __str__(self) -> str:  # KeyError shows the repr of its message
        return str(self.args[0]) if self.args else ""


class TrajectoryStateError(TrajstoreError, RuntimeError):
    """A trajectory is not in a state that allows what was asked for."""


class AlreadyConsumedError(TrajectoryStateError):
    """A trajectory would be trained on twice."""


class TrajectoryDataError(TrajstoreError, ValueError):
    """Tokens, log-probabilities, rewards or metadata that cannot be stored."""


class BufferFullError(TrajstoreError, RuntimeError):
    """The experience buffer is full and evicts nothing: hold back until a batch was taken out."""


class BufferLookupError(TrajstoreError, LookupError):
    """The experience buffer does not hold what was asked for."""


class PolicyError(TrajstoreError, ValueError):
    """A sampler or an eviction policy broke its contract."""
