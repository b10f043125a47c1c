"""Errors of bounded staleness. A call that raises one changes nothing."""

from __future__ import annotations

import operator

from tailrace.contracts import TailraceError


class StalenessError(TailraceError):
    """Root of this package's errors."""


class StalenessBoundExceeded(StalenessError, RuntimeError):  # noqa: N818 - the name is part of the fixed interface
    """No buffer in which a version may still be trained on has an empty entry."""


class LimitError(StalenessError, ValueError):
    """A bound, a batch size, a surplus or a group size is out of its range."""


class VersionError(StalenessError, ValueError):
    """A version is negative, newer than the trainer's, or older than its group's."""


class DuplicateError(StalenessError, ValueError):
    """A key has an entry already."""


class UnknownEntryError(StalenessError, LookupError):
    """A key has no entry, or its entry is of the other kind (reserved, occupied)."""


class UnknownBufferError(StalenessError, LookupError):
    """A buffer was consumed already."""


class NotReadyError(StalenessError, RuntimeError):
    """The earliest buffer, or batch, is not complete."""


class RedundantError(StalenessError, RuntimeError):
    """A group completed too late: its buffer is complete without it. Call `abort` for it."""


class OutdatedForkError(StalenessError, RuntimeError):
    """The manager changed after a fork of it was made."""


class StateError(StalenessError, ValueError):
    """A stored state is damaged: no manager could have written it."""


class SamplerError(StalenessError, ValueError):
    """A sampler's choice, or the candidates it was offered, do not match the gate's state."""


def whole(name: str, value: int, *, least: int = 0) -> int:
    """Check a value and return it.

    Args:
        name: the value's name, for the error message.
        value: the value.
        least: smallest allowed value.

    Raises:
        LimitError: the value is not a whole number of at least `least`.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise LimitError(f"found {name}={value!r}, expected a whole number of at least {least}")
    return value


def plain_version(version: int) -> int:
    """A version of numpy as an `int`, which has the bits that masks are made of.

    Raises:
        VersionError: it is no whole number.
    """
    try:
        return operator.index(version)
    except TypeError:
        raise VersionError(f"found version {version!r}, expected a whole number") from None
