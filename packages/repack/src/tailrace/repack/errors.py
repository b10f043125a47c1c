"""What goes wrong in planning."""

from __future__ import annotations

from tailrace.contracts import TailraceError


class RepackError(TailraceError):
    """Root of this package's errors."""


class LoadError(RepackError, ValueError):
    """A load, or a limit that it is planned against, cannot be right."""


class FitError(RepackError, ValueError):
    """Measurements do not determine a cost model."""
