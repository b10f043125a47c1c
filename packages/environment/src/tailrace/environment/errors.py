"""Errors of environments. What fails a session tells the caller why, who fails its trajectory; it is never a reward."""

from __future__ import annotations

from tailrace.contracts import TailraceError


class EnvironmentsError(TailraceError):
    """Root of this package's errors."""


class SetupError(EnvironmentsError, ValueError):
    """An environment cannot be had: its name, its options, its interpreter, its package or what it needs of the machine."""


class PoolFullError(EnvironmentsError, TimeoutError):
    """No session became free within the time that the caller was ready to wait."""


class PoolClosedError(EnvironmentsError, RuntimeError):
    """The pool was used after it was closed, or before it was started."""


class SessionError(EnvironmentsError, RuntimeError):
    """A session is over and cannot go on."""


class UnknownSessionError(SessionError, LookupError):
    """No session has this number: it was closed, it failed, or it never was."""


class SessionTimeoutError(SessionError, TimeoutError):
    """A call missed its deadline."""


class RaisedError(SessionError):
    """The environment raised an exception."""


class NonsenseError(SessionError, ValueError):
    """The environment answered something that is no answer of its protocol, or that is too long."""


class ActionTooLongError(SessionError, ValueError):
    """A turn is too long to be told to an environment. Its session stays as it was."""


class SessionLostError(SessionError):
    """The session's worker is gone, and it could be neither restored nor replayed: it has to be begun anew."""
