"""Errors of planning."""

from __future__ import annotations

from tailrace.contracts import TailraceError


class RepackError(TailraceError):
    """Root of this package's errors."""


class LoadError(RepackError, ValueError):
    """A load or a limit of planning is out of its range."""


class FitError(RepackError, ValueError):
    """Measurements do not determine a cost model."""
