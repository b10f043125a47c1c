"""The text in which a judge sees a response."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tailrace.reward.errors import JudgeError
from tailrace.reward.judge.items import JudgeItem

FIELDS = ("prompt", "response", "answer", "rubric")
_FIELD = re.compile("{(" + "|".join(FIELDS) + ")}")


class JudgeTemplate:
    r"""A text with ``{response}`` in it and, if it likes, ``{prompt}``, ``{answer}`` and ``{rubric}``.

    Other braces stand for themselves, so that ``\boxed{}`` and JSON need no escaping.

    Args:
        source: the text; or a file with it, if it is a path or a line that ends in ``.txt`` or ``.md``. A newline at the
            file's end does not count, since the judge answers right behind the text.

    Raises:
        JudgeError: there is no such file, or no ``{response}`` in the text.
    """

    def __init__(self, source: str | Path) -> None:
        name = str(source)
        if isinstance(source, Path) or ("\n" not in name and name.endswith((".txt", ".md"))):
            try:
                self.text = Path(source).read_text(encoding="utf-8").removesuffix("\n")
            except (OSError, UnicodeDecodeError) as error:
                raise JudgeError(f"found no readable judge template {name}, expected a text file: {error}") from error
        else:
            self.text = name
        self.fields = frozenset(_FIELD.findall(self.text))
        if "response" not in self.fields:
            found = ", ".join(f"{{{field}}}" for field in FIELDS if field in self.fields) or "no field"
            raise JudgeError(f"found {found} in the judge's template, expected {{response}} among them")

    def missing(self, item: JudgeItem) -> str | None:
        """The first field that the template shows and the item leaves empty, other than the response, or None."""
        return next((field for field in FIELDS if field in self.fields and not _filled(item, field)), None)

    def render(self, item: JudgeItem, guarded: Callable[[str], str] = str) -> str:
        """The text with its fields filled in, each passed through `guarded`. What a field says is never filled in again."""
        return _FIELD.sub(lambda found: guarded(getattr(item, found[1])), self.text)


def _filled(item: JudgeItem, field: str) -> bool:
    return field == "response" or bool(getattr(item, field))
