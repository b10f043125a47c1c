"""The root of every error that Tailrace raises on purpose, and the words for a name that does not exist."""

import difflib
from collections.abc import Collection


class TailraceError(Exception):
    """Root of the error tree. Each package derives one root of its own, whose leaves also subclass a standard exception."""


class PluginError(TailraceError, LookupError):
    """A plugin is unknown, broken, or registered twice."""


class CodecError(TailraceError, ValueError):
    """A stored or received message is not an event or a command of this vocabulary."""


def expected_one_of(name: str, known: Collection[str]) -> str:
    """What was expected instead of a name, with the nearest one: ``expected one of fifo, lifo; did you mean 'fifo'?``."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"expected one of {', '.join(known) or 'nothing'}{hint}"
