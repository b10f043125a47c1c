"""Rebuilds a controller from the event log, after its driver died."""

from __future__ import annotations

from pathlib import Path

from tailrace.controller.controller import Controller
from tailrace.controller.errors import ControllerError
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.eventlog import read_log
from tailrace.runtime.executor.roster import Roster


def replay(controller: Controller, path: Path, roster: Roster | None = None) -> float | None:
    """Rebuild a controller from the log. Returns the time of its last event; None without one.

    Args:
        controller: a new one, of the same pipeline.
        path: the log.
        roster: a new one, which takes in the log, too.

    Raises:
        RunDirectoryError: the log is damaged, or was written by another version of this code.
    """
    last = None
    if path.exists():
        for number, instant in enumerate(read_log(path), 2):
            try:
                commands = controller.handle_all(instant.events, instant.now)
            except ControllerError as error:
                raise RunDirectoryError(
                    f"{path}, line {number}: {error}; expected a log that this version wrote"
                ) from error
            found = [type(command).__name__ for command in commands]
            logged = [type(command).__name__ for command in instant.commands]
            if found != logged and "Fail" not in logged:  # a plugin that failed there may have been fixed since
                raise RunDirectoryError(
                    f"{path}, line {number}: found the commands {logged!r:.80}, expected {found!r:.80}: another version of "
                    "this code, or of a plugin, wrote it; go on with that one"
                )
            if roster is not None:
                roster.note(instant.events, instant.commands, instant.heard)
            last = instant.now
    return last
