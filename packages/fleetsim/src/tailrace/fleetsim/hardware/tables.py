"""Reading the fields of a TOML or JSON table, each problem as one line: what was found, where, what was expected."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from tailrace.fleetsim.errors import HardwareFileError, UnknownNameError

Entry = TypeVar("Entry")


def pick(kind: str, name: str, table: Mapping[str, Entry]) -> Entry:
    """The entry of this name.

    Raises:
        UnknownNameError: there is none.
    """
    try:
        return table[name]
    except KeyError:
        raise UnknownNameError(f"found the unknown {kind} {name!r}, {hint(name, table)}") from None


def hint(name: str, known: Iterable[str]) -> str:
    """What may have been meant, and everything that is known."""
    by_fold = {one.casefold(): one for one in known}
    close = [by_fold[one] for one in difflib.get_close_matches(name.casefold(), by_fold, n=3, cutoff=0.5)]
    meant = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return f"{meant}Expected one of {', '.join(by_fold.values())}"


class Table:
    """A table whose fields are taken one at a time.

    Args:
        fields: as a parser gave them.
        where: file and entry, for messages.
    """

    def __init__(self, fields: Mapping[str, Any], where: str) -> None:
        self.fields = fields
        self.where = where

    def only(self, known: Iterable[str]) -> None:
        """Refuse keys that nobody reads.

        Raises:
            HardwareFileError: there is one.
        """
        known = tuple(known)
        for key in self.fields:
            if key not in known:
                raise HardwareFileError(f"{self.where}: found the unknown key {key!r}, {hint(key, known)}")

    def take(self, key: str) -> Any:
        """The value of a key that has to be there.

        Raises:
            HardwareFileError: it is not.
        """
        if key not in self.fields:
            raise HardwareFileError(f"{self.where}: found no key {key!r}, expected one")
        return self.fields[key]

    def number(self, key: str, *, least: float = 0.0, over: bool = True, most: float = math.inf) -> float:
        """A finite number above `least`, or at least `least` if not `over`, and at most `most`."""
        return self.checked(key, self.take(key), least=least, over=over, most=most)

    def whole(self, key: str, *, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise HardwareFileError(
                f"{self.where}, key {key!r}: found {value!r}, expected a whole number of at least {least}"
            )
        return value

    def flag(self, key: str) -> bool:
        """A truth value, false where the key is missing."""
        value = self.fields.get(key, False)
        if not isinstance(value, bool):
            raise HardwareFileError(f"{self.where}, key {key!r}: found {value!r}, expected true or false")
        return value

    def by_parallel(
        self, key: str, *, least: float = 0.0, over: bool = True, infinite: bool = False
    ) -> Mapping[int, float]:
        """Numbers by tensor parallelism: a table, or one number for all of 1, 2, 4 and 8."""
        value = self.take(key)
        if not isinstance(value, Mapping):
            value = {"1": value, "2": value, "4": value, "8": value}
        found: dict[int, float] = {}
        for parallel, number in value.items():
            if not parallel.isdecimal() or int(parallel) < 1:
                raise HardwareFileError(
                    f"{self.where}, key {key!r}: found the entry {parallel!r}, expected a tensor parallelism of at least 1"
                )
            found[int(parallel)] = self.checked(
                f"{key}.{parallel}", number, least=least, over=over, most=math.inf, infinite=infinite
            )
        return dict(sorted(found.items()))

    def checked(self, key: str, value: Any, *, least: float, over: bool, most: float, infinite: bool = False) -> float:
        """The value as a number within its limits.

        Raises:
            HardwareFileError: it is none, or outside.
        """
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if (
            not is_number
            or math.isnan(value)
            or (math.isinf(value) and not infinite)
            or not (value > least if over else value >= least)
            or value > most
        ):
            bound = f"{'over' if over else 'of at least'} {least:g}" + (
                f" and at most {most:g}" if most < math.inf else ""
            )
            raise HardwareFileError(f"{self.where}, key {key!r}: found {value!r}, expected a number {bound}")
        return float(value)
