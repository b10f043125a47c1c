"""Errors of talking with a child process."""


class ChildError(Exception):
    """Root of this package's errors."""


class ChildTimeoutError(ChildError, TimeoutError):
    """A child neither took nor gave a line within the deadline."""


class ChildEndedError(ChildError, EOFError):
    """A child closed its end of a pipe, as it does when it ends."""


class LineError(ChildError, ValueError):
    """A line is no object in JSON, or is too long."""


class NamespaceError(ChildError, RuntimeError):
    """This system does not make the namespaces that were asked for."""
