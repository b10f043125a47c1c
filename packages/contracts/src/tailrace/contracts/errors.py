"""The root of every error that Tailrace raises on purpose, and the words for an unknown name and for a missing extra."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec


class TailraceError(Exception):
    """Root of the error tree. Each package derives one root of its own, whose leaves also subclass a standard exception."""


class PluginError(TailraceError, LookupError):
    """A plugin is unknown, broken, or registered twice."""


class CodecError(TailraceError, ValueError):
    """A stored or received message is not an event or a command of this vocabulary."""


class UnreadableWeightsError(TailraceError, RuntimeError):
    """An engine keeps the weights of a model in a way that it cannot read back. The message says how."""


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
    close = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"expected one of {', '.join(known) or 'nothing'}{hint}"


class MissingExtraError(TailraceError, ImportError):
    """A library that comes with an extra is not installed. The message has the pip line."""


@contextmanager
def extra(distribution: str, name: str) -> Iterator[None]:
    """Import optional libraries inside this context: ``with extra("tailrace-paramserver", "torch"): import torch``.

    A library that is there and breaks while it is imported raises its own error.

    Args:
        distribution: the distribution that has the extra.
        name: the extra's name.

    Raises:
        MissingExtraError: a module is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"found no module {error.name!r}, expected that of an extra: pip install '{distribution}[{name}]'"
        ) from error


def need_extra(distribution: str, name: str, *modules: str) -> None:
    """Check, without importing them, that the modules of an extra are installed: before long work whose end needs them.

    Raises:
        MissingExtraError: a module is not installed.
    """
    with extra(distribution, name):
        for module in modules:
            if find_spec(module) is None:
                raise ModuleNotFoundError(f"No module named {module!r}", name=module)
