"""Checks that continue after a fault, so that a user sees all faults at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tailrace.contracts import TailraceError
from tailrace.pipeline.errors import ConfigListError, config_error


class Gathered:
    """Messages of faults, in the order in which they were found, each once."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    @contextmanager
    def check(self) -> Iterator[None]:
        """Do a check in this context. Its error is kept, so that the next check is done too."""
        try:
            yield
        except TailraceError as error:
            self.add(*(error.lines if isinstance(error, ConfigListError) else [str(error)]))

    def add(self, *lines: str) -> None:
        """Faults that were found without an error."""
        self._lines.update(dict.fromkeys(lines))

    @property
    def lines(self) -> tuple[str, ...]:
        """The faults so far."""
        return tuple(self._lines)

    def done(self, where: str = "") -> None:
        """Raise the faults that were found, if any.

        Args:
            where: text before each line.

        Raises:
            ConfigError: there is one fault.
            ConfigListError: there are several faults.
        """
        if self._lines:
            raise config_error([f"{where}{line}" for line in self._lines])
