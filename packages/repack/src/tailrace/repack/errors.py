"""Errors of planning."""

from __future__ import annotations

from tailrace.contracts import TailraceError


class RepackError(TailraceError):
    """Root of this package's errors."""


class LoadError(RepackError, ValueError):
    """A load or a limit of planning is out of its range."""


class FitError(RepackError, ValueError):
    """Measurements do not determine a cost model."""


class UnmeasuredError(RepackError, ValueError):
    """A profile has no usable figure for what planning asks it."""


class NothingFitsError(RepackError, ValueError):
    """No way to place the work fits the devices."""
