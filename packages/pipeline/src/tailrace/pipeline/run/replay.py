"""Replays the controller over a run's log: to go on after its driver died, and for all who look at a run afterwards.

config.json ──► controller_of ──► controller ──┐
events.jsonl ──────────────────────────────────┴─► replayed ──► each instant, and the controller's view after it

Nobody else knows afterwards who was where and why somebody waited. The controller is pure, so the view is what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tailrace.contracts import Command, Event
from tailrace.controller.controller import Controller
from tailrace.controller.errors import ControllerError
from tailrace.controller.view import RunView
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.eventlog import FollowedInstant, Instant, read_log
from tailrace.pipeline.run.pools import relay_count
from tailrace.runtime.executor.roster import Roster

Observe = Callable[[float, Sequence[Event], Sequence[Command], RunView], None]


def controller_of(directory: RunDirectory) -> Controller:
    """A new controller, as the first driver of a run built it.

    Raises:
        RunDirectoryError, ConfigError: the configuration is damaged.
    """
    config, beside = directory.began_with(), dict(directory.beside)
    relays = beside.pop("relays", relay_count(config))
    return Controller(replace(build_spec(config, recorded=True), **beside), relays=relays)


def replayed(controller: Controller, path: Path, *, version: str = "") -> Iterator[Instant]:
    """The instants of a log, each once the controller has taken it in.

    Args:
        controller: a new one, of the same pipeline.
        path: the log; without one there is no instant.
        version: the version of Tailrace that began the log, as far as its run knows.

    Raises:
        RunDirectoryError: the log is damaged, or was written by another version of this code.
    """
    for number, instant in enumerate(read_log(path) if path.exists() else (), 2):
        take_in(controller, instant, path, number, version=version)
        yield instant


def take_in(
    controller: Controller, instant: Instant | FollowedInstant, path: Path, line: int, *, version: str = ""
) -> Sequence[Command]:
    """Show the next instant of a log to a controller. Returns its commands.

    Args:
        line: the number of its line.
        controller, path, version: see `replayed`.

    Raises:
        RunDirectoryError: the controller does not take it, or decides otherwise: another version of this code wrote it.
    """
    by = f"version {version}" if version else "a version that did not say which"
    try:
        commands = controller.handle_all(instant.events, instant.now)
    except (ControllerError, LookupError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise RunDirectoryError(
            f"{path}, line {line}: {why}; expected a log that this version wrote, and {by} wrote it"
        ) from error
    found, logged = [type(command).__name__ for command in commands], instant.kinds
    if found == logged:
        return commands
    if "Fail" not in logged:  # a plugin that failed there may have been fixed since
        raise RunDirectoryError(
            f"{path}, line {line}: found the commands {logged!r:.80}, expected {found!r:.80}: another version of "
            f"this code, or of a plugin, wrote it ({by}); read it, or go on with it, with that one"
        )
    return instant.commands


def replay(
    controller: Controller,
    path: Path,
    roster: Roster | None = None,
    *,
    version: str = "",
    observe: Observe = lambda *_: None,
) -> float | None:
    """Rebuild a controller from the log. Returns the time of its last event; None without one.

    Args:
        controller, path, version: see `replayed`.
        roster: a new one, which takes in the log, too.
        observe: is shown each instant, and the controller's view after it.

    Raises:
        RunDirectoryError: see `replayed`.
    """
    last = None
    for instant in replayed(controller, path, version=version):
        if roster is not None:
            roster.note(instant.events, instant.commands, instant.heard)
        observe(instant.now, instant.events, instant.commands, controller.view)
        last = instant.now
    return last
