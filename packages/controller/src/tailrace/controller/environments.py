"""Turns: trajectories that an environment answers, between two stays on a replica.

    RUNNING ──TurnEnded──► IN_ENVIRONMENT ──Turned──► PENDING ──Route──► RUNNING        to its home, if it still can
                              │                └─ done ──► DONE
                              └──CallFailed──► its group fails, or the trajectory begins anew

To the controller such a trajectory is like one that was interrupted: the store has its tokens, and it may go on wherever its
version allows. But it is owed by its *home*, the replica that has the keys and values of its tokens: the home counts it in its
view, and gets it back without being chosen, unless the routing policy sees prefix caches and so chooses. It holds no place
there and costs nothing. A home that dies, stops or pulls another version loses nothing with it; relocation gives it another
home without moving anything.
"""

from __future__ import annotations

from typing import Any, Final

from tailrace import contracts as c
from tailrace.controller.fleet import ReplicaState
from tailrace.controller.prefix_caches import leaves
from tailrace.controller.state import State
from tailrace.controller.trajectories import Phase, TrajectoryState

_EVAL: Final = c.Purpose.EVAL
_PENDING: Final = Phase.PENDING
_TURNED: Final = c.Reason(c.Why.TURNED)


class Environments:
    """Sends trajectories to their environments, and home again.

    `homeless` says whether any came back since the last call of `go_on` that could not go home: routing places it.
    """

    def __init__(self, state: State) -> None:
        self._state, self._ledger, self._fleet, self._sessions = state, state.ledger, state.fleet, state.sessions
        self.homeless = False
        self._returning: dict[str, str | None] = {}  # by trajectory, its home

    def turn_ended(self, event: c.TurnEnded) -> None:
        """A turn is complete: its environment is asked. What is repeated, dropped or elsewhere by now changes nothing."""
        name, state = event.trajectory, self._ledger.trajectories.get(event.trajectory)
        replica = self._fleet.replicas[event.replica]
        if state is not None and state.replica == replica.id and not state.may_end_turn(event.tokens):
            return  # it has begun its next turn here, and this was said twice
        replica.left(name, evaluation=state is not None and state.purpose is _EVAL)
        replica.member.worked()
        if state is None or state.replica != replica.id:
            return
        home = replica if state.destination is None else self._fleet.replicas[state.destination]
        self._state.unbind(state)
        self._ledger.turn_ended(state, event.tokens)
        if self._state.sees_prefixes:
            leaves(self._ledger, replica, state)
        if home.member.health is c.Health.UP and not home.lent:
            home.awaits(state)
        self._sessions.ask(name)

    def turned(self, event: c.Turned) -> TrajectoryState | None:
        """An environment has answered. Returns the trajectory if it is complete with that.

        Raises:
            ControllerError: it has fewer tokens than before.
        """
        if self._sessions.answered(event) is None:
            return None
        self._state.brought.answered.append(event)
        state = self._ledger.trajectories[event.trajectory]
        self._ledger.answered(state, event.tokens, event.session)
        home = self._fleet.comes_back(state)
        if event.done:
            self._sessions.over(event.trajectory)
            return state
        self._ledger.returned(event.trajectory, None)
        self._returning[event.trajectory] = home
        return None

    def go_on(self) -> None:
        """Route what environments answered home, where the replica serves the version that it needs."""
        self.homeless = False
        if not self._returning:
            return
        returning, self._returning = self._returning, {}
        homes: dict[str, list[TrajectoryState]] = {}
        for name, home in returning.items():
            state = self._ledger.trajectories.get(name)
            if state is None or state.phase is not _PENDING or name in self._ledger.discarding:
                continue  # it was dropped, or begins anew
            chosen = self._state.sees_prefixes and state.purpose is not _EVAL
            if home is not None and not chosen and self._may_return(state, self._fleet.replicas[home]):
                homes.setdefault(home, []).append(state)
            else:
                self.homeless = True
        for home, states in homes.items():
            self._state.route(self._fleet.replicas[home], states, _TURNED)

    def plain(self) -> dict[str, Any]:
        """The whole state as plain data."""
        return {"returning": dict(self._returning)}

    def forget(self) -> None:
        """Forget all, since the driver died: the store says what every trajectory has."""
        self._sessions.forget()
        self._returning.clear()

    def _may_return(self, state: TrajectoryState, replica: ReplicaState) -> bool:
        if not replica.serves:
            return False
        assert replica.version is not None
        if self._ledger.exact(state):
            return state.version == replica.version
        oldest = self._ledger.groups[state.group].version
        return oldest is None or replica.version >= oldest
