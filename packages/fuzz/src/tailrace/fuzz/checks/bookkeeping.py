"""The ledger and the fleet agree with themselves and with each other: otherwise something would wait for ever.

The controller keeps counts where scanning would cost too much; here they are counted anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailrace.contracts import Command, Event, Health, Purpose, decode
from tailrace.controller.controller import Controller
from tailrace.controller.fleet import Replicas
from tailrace.controller.ledger import Ledger
from tailrace.controller.trajectories import GroupPhase, Phase, TrajectoryState
from tailrace.fleetsim.fleet.fleet import SimulatedFleet
from tailrace.fleetsim.results.log import Instant, MemoryLog
from tailrace.fuzz.errors import InvariantError

REBUILT = "the log rebuilds the controller"
BOOKS = "the controller's books agree"

_PENDING, _RUNNING, _SCORED, _EVAL = Phase.PENDING, Phase.RUNNING, Phase.SCORED, Purpose.EVAL
_AWAY = Phase.IN_ENVIRONMENT


def check_books(controller: Controller, pulling: Mapping[str, int]) -> None:
    """Every trajectory is where the controller's other records say it is.

    Args:
        pulling: what replicas were asked to pull and have not answered.

    Raises:
        InvariantError: two records contradict each other.
    """
    ledger, fleet = controller.ledger, controller.fleet
    pending: list[TrajectoryState] = []
    running: dict[str | None, list[TrajectoryState]] = {}
    away: dict[str, TrajectoryState] = {}
    moving: dict[str | None, int] = {}
    unfinished: dict[int, int] = {}
    mixes = ledger.mixes_versions
    for state in ledger.trajectories.values():
        phase = state.phase
        if state.destination is not None:
            moving[state.destination] = moving.get(state.destination, 0) + 1
        if phase is _RUNNING:
            running.setdefault(state.replica, []).append(state)
        elif phase is _PENDING:
            pending.append(state)
        elif phase is _AWAY:
            away[state.id] = state
        else:
            continue
        if state.version is not None and (not mixes or state.purpose is _EVAL):
            unfinished[state.version] = unfinished.get(state.version, 0) + 1
    _same("trajectories that still need a version", _positive(ledger.unfinished), unfinished)
    _check_pending(ledger, pending)
    _check_fleet(fleet, running, moving, away)
    _check_sessions(controller, away)
    _check_groups(ledger)
    told = {name: replica for name, replica in fleet.replicas.items() if replica.pull_waits is None}
    believed = {name: replica.pulling for name, replica in told.items() if replica.pulling is not None}
    # One that stood still, and waits for its devices before it begins anew, answers no more, though nobody said so.
    up = {
        name: version for name, version in pulling.items() if fleet.replicas[name].member.health is not Health.STARTING
    }
    _same("versions that replicas pull", believed, up)


def _check_pending(ledger: Ledger, pending: list[TrajectoryState]) -> None:
    held = {state.id for state in pending if state.id in ledger.discarding}
    _same("trajectories that the store is dropping", set(ledger.discarding), held)
    pending = [state for state in pending if state.id not in held]
    waiting = {state.id for state in pending if state.purpose is not _EVAL}
    _same("trajectories in the pool", set(ledger.waiting.level_of), waiting)
    stranded = {state.id for state in pending if state.purpose is _EVAL}
    _same("stranded evaluations", set(ledger.stranded_evaluations), stranded)


def _check_sessions(controller: Controller, away: dict[str, TrajectoryState]) -> None:
    sessions = controller.sessions
    _same("trajectories in environments", {*sessions.calls, *sessions.waiting}, set(away))
    _same("calls that wait and are made", sessions.calls.keys() & sessions.waiting.keys(), set())
    unknown = {name for name in sessions.of if name not in controller.ledger.trajectories}
    _same("sessions of trajectories that are settled", unknown, set())


def _check_fleet(
    fleet: Replicas,
    running: dict[str | None, list[TrajectoryState]],
    moving: dict[str | None, int],
    away: dict[str, TrajectoryState],
) -> None:
    for replica in fleet.replicas.values():
        here, name = running.pop(replica.id, []), replica.id
        _same(f"trajectories on {name}", set(replica.assigned.states), {state.id for state in here})
        seen = replica.assigned.seen
        if seen is not None:
            _same(f"trajectories that policies see on {name}", set(seen), set(replica.assigned.states))
        _same(f"trajectories on their way to {name}", replica.incoming, moving.pop(name, 0))
        comes_back = {state.id for state in away.values() if state.home == name}
        _same(f"trajectories in environments that come back to {name}", set(replica.away), comes_back)
        owed = [*here, *replica.away.values()]
        _same(f"evaluations on {name}", replica.evaluating, sum(state.purpose is _EVAL for state in owed))
        if replica.member.health not in (Health.UP, Health.STOPPING, Health.RESIZING):
            _same(f"version of {name}, which is {replica.member.health}", replica.version, None)
            _same(f"trajectories on {name}, which is {replica.member.health}", len(owed), 0)
    _same("snapshots that contradict the books (StaleFlow, equation 1)", fleet.contradictions, 0)
    _same("trajectories on replicas that do not exist", {id_: len(states) for id_, states in running.items()}, {})
    _same("trajectories on their way to replicas that do not exist", moving, {})


def _check_groups(ledger: Ledger) -> None:
    counts, phases = ledger.counts, dict.fromkeys(GroupPhase, 0)
    unstarted: set[int] = set()
    for index, group in ledger.groups.items():
        phases[group.phase] += 1
        if group.version is None:
            unstarted.add(index)
        else:
            _same(f"rewards in group {index}", group.scored, sum(state.phase is _SCORED for state in group.states))
    _same("groups that have not started", set(ledger.waiting.unstarted.groups), unstarted)
    _same("trajectories that have not started", set(ledger.unstarted.values()), unstarted)
    _same("groups that generate", ledger.generating, phases[GroupPhase.GENERATING])
    _same("complete groups", len(ledger.buffered), phases[GroupPhase.BUFFERED])
    _same(
        "groups consumed",
        sum(len(groups) for groups in ledger.consumed.values()),
        phases[GroupPhase.TRAINING] + phases[GroupPhase.TRAINED],
    )
    unsettled = phases[GroupPhase.GENERATING] + phases[GroupPhase.BUFFERED] + phases[GroupPhase.TRAINING]
    ended = counts.trained + counts.filtered + counts.failed + counts.deferred
    _same("groups admitted", counts.admitted, ended + unsettled)


def _positive(counts: dict[int, int]) -> dict[int, int]:
    return {version: count for version, count in counts.items() if count}


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise InvariantError(BOOKS, f"{what}: the books say {found}, counted {expected}")


# Invariant 6: the event log is the controller's durable state. What it rebuilds is the same, and goes on the same.


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
