"""What goes wrong in keeping staleness bounded. Every error leaves the state as it was."""

from __future__ import annotations

from tailrace.contracts import TailraceError


class StalenessError(TailraceError):
    """Root of this package's errors."""


class StalenessBoundExceeded(StalenessError, RuntimeError):  # noqa: N818 - the name is part of the fixed interface
    """No buffer that a version may still be trained in has an empty entry."""


class LimitError(StalenessError, ValueError):
    """A bound, a batch size, a surplus or a group size is out of its range."""


class VersionError(StalenessError, ValueError):
    """A version that cannot be: negative, newer than the trainer's, or older than its group's."""


class DuplicateError(StalenessError, ValueError):
    """A key has an entry already."""


class UnknownEntryError(StalenessError, LookupError):
    """A key has no entry, or its entry is not of the kind that was asked for."""


class UnknownBufferError(StalenessError, LookupError):
    """A buffer that was consumed already."""


class NotReadyError(StalenessError, RuntimeError):
    """The earliest buffer, or batch, is not complete."""


class RedundantError(StalenessError, RuntimeError):
    """A reserved entry came too late: its buffer has all that it needs. It is for `abort`."""


class OutdatedForkError(StalenessError, RuntimeError):
    """The manager changed after a fork of it was made."""


class StateError(StalenessError, ValueError):
    """A stored state that no manager could have written."""


class SamplerError(StalenessError, ValueError):
    """A sampler's choice, or what it was offered, is not what the gate holds."""
