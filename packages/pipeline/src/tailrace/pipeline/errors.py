"""Errors of a pipeline. Each has a message of one line for the user, except `ConfigListError`."""

import errno
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tailrace.contracts import TailraceError
from tailrace.controller.errors import PipelineError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What a system says of a disk, a quota or a file that is full."""


class ConfigError(PipelineError, ValueError):
    """A configuration cannot be used: unknown key, wrong type or unit, missing file."""


class ConfigListError(ConfigError):
    """A configuration has several faults.

    Args:
        lines: one line for each fault.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


def config_error(lines: Sequence[str]) -> ConfigError:
    """The error for the faults of a configuration: at least one line, one for each."""
    return ConfigError(lines[0]) if len(lines) == 1 else ConfigListError(lines)


def resume_command(root: Path | str) -> str:
    """What a person types to go on with a run.

    Args:
        root: its directory.
    """
    return f"tailrace run --resume {shlex.quote(str(root))}"


class RunDirectoryError(PipelineError, OSError):
    """A run directory is missing, damaged, or in use."""


class RunWriteError(RunDirectoryError):
    """A file of a run directory could not be written: the disk is full or broken. The file was not changed.

    Its arguments are `errno`, `strerror` (the reason) and `filename` (the path), as of any `OSError`.
    """

    def __str__(self) -> str:
        return f"{self.filename}: could not be written: {self.strerror}"


class LogWriteError(RunWriteError):
    """The event log could not be written. It ends with a complete line, so the run can be resumed from it."""

    def __str__(self) -> str:
        what = "free space" if self.errno in FULL else "mend that"
        return f"{super().__str__()}; {what}, then: {resume_command(Path(str(self.filename)).parent)}"


# Checks that continue after a fault, so that a user sees all faults at once.


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
