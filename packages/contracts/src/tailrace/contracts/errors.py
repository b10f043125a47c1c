"""The root of every error that Tailrace raises on purpose."""


class TailraceError(Exception):
    """Root of the error tree. Each package derives one root of its own, whose leaves also subclass a standard exception."""


class PluginError(TailraceError, LookupError):
    """A plugin is unknown, broken, or registered twice."""


class CodecError(TailraceError, ValueError):
    """A stored or received message is not an event or a command of this vocabulary."""
