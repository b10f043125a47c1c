"""The root of every error that Tailrace raises on purpose, and the words for a name that does not exist."""

import difflib
import unicodedata
from collections.abc import Collection


class TailraceError(Exception):
    """Root of the error tree. Each package derives one root of its own, whose leaves also subclass a standard exception."""


class PluginError(TailraceError, LookupError):
    """A plugin is unknown, broken, or registered twice."""


class CodecError(TailraceError, ValueError):
    """A stored or received message is not an event or a command of this vocabulary."""


_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Zl", "Zp"))


def shown(text: str, keep: str = "") -> str:
    r"""A text that others wrote, to be recorded or printed: a model, a verifier, an environment, an engine.

    What a terminal or a page would carry out, and what it would not show, is written as Python escapes it: control characters
    (``\x1b``, ``\n``), marks that turn the direction of text, lone surrogates. What is escaped once stays as it is.

    Args:
        keep: characters that stay, such as line breaks.
    """
    if text.isprintable():
        return text
    return "".join(
        repr(letter)[1:-1] if unicodedata.category(letter) in _UNSEEN and letter not in keep else letter
        for letter in text
    )


def expected_one_of(name: str, known: Collection[str]) -> str:
    """What was expected instead of a name, with the nearest one: ``expected one of fifo, lifo; did you mean 'fifo'?``."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"expected one of {', '.join(known) or 'nothing'}{hint}"
