"""Invariant 6: the event log is the controller's durable state. What it rebuilds is the same, and goes on the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tailrace.contracts import Command, Event, decode
from tailrace.fleetsim.fleet import SimulatedFleet
from tailrace.fleetsim.log import Instant, MemoryLog
from tailrace.fuzz.errors import InvariantError
from tailrace.pipeline.controller.controller import Controller

REBUILT = "the log rebuilds the controller"


def rebuild(
    fleet: SimulatedFleet, log: Sequence[Instant], expected: Controller, *, from_file: bool = True
) -> Controller:
    """A new controller that was given the log.

    Args:
        from_file: as it would be read from a file; otherwise as it is in memory, which is sooner done.

    Raises:
        InvariantError: its state is not, byte for byte, that of the one which died.
    """
    rebuilt = replayed(fleet, log, from_file=from_file)
    found, wanted = state_bytes(rebuilt), state_bytes(expected)
    if found != wanted:
        raise InvariantError(REBUILT, f"its state differs after {len(log)} instants: {_difference(found, wanted)}")
    return rebuilt


def replayed(fleet: SimulatedFleet, log: Sequence[Instant], *, from_file: bool = True) -> Controller:
    """A new controller that was given the log, see `rebuild`.

    Raises:
        InvariantError: it does not take it.
    """
    controller = Controller(fleet.spec, relays=fleet.relays)
    try:
        for now, events in _read(log) if from_file else ((now, events) for now, events, _ in log):
            controller.handle_all(events, now)
    except Exception as error:
        raise InvariantError(REBUILT, f"replaying {len(log)} instants: {type(error).__name__}: {error}") from error
    return controller


def _read(log: Sequence[Instant]) -> Iterator[tuple[float, list[Event]]]:
    for line in MemoryLog(log).lines():
        instant = json.loads(line)
        yield instant["t"], [decode(event) for event in instant["events"]]


def state_bytes(controller: Controller) -> str:
    """The whole state as text."""
    return json.dumps(_with_text_keys(controller.state()), default=str, sort_keys=False)


def same_commands(now: float, found: Sequence[Command], expected: Sequence[Command]) -> None:
    """The rebuilt controller decides as the one that died would have.

    Raises:
        InvariantError: it does not.
    """
    if list(found) != list(expected):
        raise InvariantError(REBUILT, f"at {now:.3f} s it gives {found!r:.300}, expected {expected!r:.300}")


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _with_text_keys(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_with_text_keys(part) for part in value]
    return value


def _difference(found: str, wanted: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted)))
    begin = max(0, at - 60)
    return f"at ...{found[begin : at + 60]}..., expected ...{wanted[begin : at + 60]}..."
