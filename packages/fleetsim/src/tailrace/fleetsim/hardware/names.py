"""Looks names up in a table, with a suggestion for unknown ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from tailrace.fleetsim.errors import UnknownNameError

Entry = TypeVar("Entry")


def pick(kind: str, name: str, table: Mapping[str, Entry]) -> Entry:
    """The entry of this name.

    Raises:
        UnknownNameError: the table has no such entry. The message suggests the nearest name and lists all.
    """
    if name in table:
        return table[name]
    by_fold = {one.casefold(): one for one in table}
    close = [by_fold[one] for one in difflib.get_close_matches(name.casefold(), by_fold, n=3, cutoff=0.5)]
    meant = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    raise UnknownNameError(f"found the unknown {kind} {name!r}, {meant}Expected one of {', '.join(table)}")
