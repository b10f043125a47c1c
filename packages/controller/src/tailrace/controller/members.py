"""Members and machines: which member lives where, and how often it failed.

STARTING ──Up──► UP ──Down──► DOWN ──Restart──► STARTING
                 │             └──evicted: gone for good
                 ├──Stop──► STOPPING ──Down──► gone
                 └──► RESIZING ──Resize──► STARTING

Where a run's own cluster has named machines, members stand so:

    machine   0           1           2
              trainer     replica r0  replica r1     a replica leaves the trainer its machine while there is another
              relay 0     relay 1     relay 2        of every other role each machine has about as many

A hybrid stands where the trainer does, whose devices it shares, and the trainer comes back to where hybrids are. Data, scorer
and ranker stand beside the controller, on none of them: a machine's death costs nobody's work but its own members' (RobustRL,
section 3). A machine that is given up is chosen only where no other is left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.contracts import (
    Activity,
    Cause,
    Down,
    Failure,
    Health,
    MachineView,
    MemberView,
    Place,
    ProcessSeat,
    Silent,
    Up,
)
from tailrace.faulttol import Troubles

RELAY, TRAINER, REPLICA, DATA, SCORER, RANKER = "relay", "trainer", "replica", "data", "scorer", "ranker"
ENVIRONMENT = "environment"
_UP, _HYBRID = Health.UP, "hybrid"
_ROUNDING = 1e-6
LEAVING = frozenset({Health.STOPPING, Health.RESIZING})
"""A replica is emptied in these: its process lives until what it holds is elsewhere."""
_BESIDE = frozenset({DATA, SCORER, RANKER})  # they stand on no machine of the run


@dataclass(slots=True)
class MemberState:
    """One member. `avoids` are machines that it may not use.

    `failures` are its failures since it last did its work, however long ago: of each the batches that were trained on before.
    `moved` says how many of them had come when it was given another machine for them.

    `moved_s` is when it last showed progress or came up, `heard_s` when it last answered if it is silent now, both in seconds
    on the run's clock.

    A replica spans `tp` devices; `own_tp` is the same number if it is not that of its pool at the run's start. `site` is empty
    at the trainer's site, `pool` for members that are no replicas of a pool; `index` counts the relays of a site. `seats` are
    where its processes stand or, while it starts, stood last, if the host says it. `stands` is the machine where it was last
    told to start, if the run's machines have names or it is to start where it was, and `stood` where it was last known to be.
    A `hybrid` is a replica on devices of the trainer. `notes` say what it serves otherwise than its settings say.
    """

    role: str
    id: str
    health: Health = Health.STARTING
    machine: str = ""
    address: str = ""
    phase: str = ""
    still_s: float = 0.0
    slowest_s: float = 0.0
    moved_s: float = 0.0
    heard_s: float | None = None
    failures: list[int] = field(default_factory=list)
    moved: int = 0
    avoids: tuple[str, ...] = ()
    tp: int = 1
    own_tp: int | None = None
    site: str = ""
    pool: str = ""
    index: int | None = None
    stands: str = ""
    stood: str = ""
    hybrid: bool = False
    seats: tuple[ProcessSeat, ...] = ()
    notes: tuple[str, ...] = ()

    def worked(self) -> None:
        """Note that it did its work, so that its next failure is the first in a row."""
        if self.failures:
            self.failures.clear()
        self.moved = 0

    def trained(self, step: int) -> None:
        """Note that a trainer made a step, with `step` batches before it.

        That makes up for failures in it and in those before. To come to a step again from an older checkpoint achieves nothing.
        """
        left = [at for at in self.failures if at > step]
        self.moved = max(0, self.moved - (len(self.failures) - len(left)))
        self.failures = left

    def view(self, in_flight: int) -> MemberView:
        """The member's view for policies."""
        return MemberView(
            self.role,
            self.id,
            self.health,
            self.machine,
            self.phase,
            in_flight,
            tp=self.tp,
            pool=self.pool,
            site=self.site,
            hybrid=self.hybrid,
        )


@dataclass(slots=True)
class Members:
    """All members that were started and are not gone for good, in the order in which they were first started.

    `failed` lists the time, role and machine of all failures that still count for a machine or a role. `restarts` counts
    restarts by role, those of members that are gone for good too. `alarming` are members that are silent or say that they
    stand still. `noted` are the notes of all members that came up, each once, with who said it.

    Args:
        named: the names of the run's machines, in order; empty if the host chooses where members stand.
    """

    named: tuple[str, ...] = ()

    states: dict[tuple[str, str], MemberState] = field(default_factory=dict)
    machines: dict[str, MachineView] = field(default_factory=dict)
    failed: list[tuple[float, str, str]] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    alarming: dict[tuple[str, str], None] = field(default_factory=dict)
    noted: dict[str, None] = field(default_factory=dict)

    def add(self, role: str, id_: str, *, site: str = "", pool: str = "") -> MemberState:
        """Add a member that is starting."""
        state = self.states[role, id_] = MemberState(role, id_, site=site, pool=pool)
        if role == RELAY:
            state.index = sum(other.site == site for other in self.of(RELAY)) - 1
        return state

    def place(self, state: MemberState, machine: str = "") -> Place:
        """Where a member may stand that is about to start: on a certain machine, if one is given."""
        if machine:
            state.stands = machine
        elif self.named:
            gone = {*self.given_up, *state.avoids}
            fit = [name for name in self.named if name not in gone] or self.named
            standing = [(_kind(other), other.stands) for other in self.states.values() if other is not state]
            state.stands = machine_for(_kind(state), fit, standing)
        return Place(state.index, state.avoids, state.site, state.pool, machine=state.stands)

    def get(self, role: str, id_: str = "0") -> MemberState | None:
        """A member; None if it is gone for good."""
        return self.states.get((role, id_))

    def of(self, role: str) -> Iterator[MemberState]:
        """The members of a role."""
        return (state for state in self.states.values() if state.role == role)

    def worked(self, role: str, id_: str = "0") -> None:
        """Note that a member did its work, unless it is gone for good."""
        state = self.states.get((role, id_))
        if state is not None:
            state.worked()

    def is_up(self, role: str, id_: str = "0") -> bool:
        """Whether a member can be given work."""
        state = self.states.get((role, id_))
        return state is not None and state.health is _UP

    def came_up(self, event: Up, now: float = 0.0) -> MemberState | None:
        """Mark a member as up since `now`. Returns None if it is gone for good."""
        state = self.states.get((event.role, event.id))
        if state is None:
            return None
        if state.health not in LEAVING:
            state.health = _UP
        state.machine, state.address, state.seats = event.machine, event.address, event.seats
        state.notes = event.notes
        self.noted |= dict.fromkeys(f"{event.role} {event.id}: {note}" for note in event.notes)
        state.stood = event.machine or state.stood
        if state.stands and event.machine:
            state.stands = event.machine
        state.slowest_s, state.moved_s = 0.0, now
        self._forget_signs(state)
        if event.machine and event.machine not in self.machines:
            self.machines[event.machine] = MachineView(event.machine)
        return state

    def says(self, event: Activity, now: float) -> None:
        """Store a member's activity. One that does not stand still has moved."""
        state = self.states.get((event.role, event.id))
        if state is not None:
            state.phase, state.still_s, state.slowest_s = event.phase, event.still_s, event.slowest_s
            if not event.still_s:
                state.moved_s = now
            self._note(state)

    def silent(self, event: Silent, now: float) -> None:
        """Store since when a member has been silent, or that it answers again. One without a process cannot answer."""
        state = self.states.get((event.role, event.id))
        if state is not None and (state.health is _UP or state.health in LEAVING):
            state.heard_s = now - event.silent_s if event.silent_s else None
            self._note(state)

    def unheard(self, away_s: float) -> None:
        """Forget who was silent, and count no second of a time in which nobody listened."""
        for state in self.states.values():
            state.moved_s, state.heard_s = state.moved_s + away_s, None
            self._note(state)

    def _note(self, state: MemberState) -> None:
        if state.still_s or state.heard_s is not None:
            self.alarming[state.role, state.id] = None
        else:
            self.alarming.pop((state.role, state.id), None)

    def _forget_signs(self, state: MemberState) -> None:
        """Forget the signs of life of a process that is gone."""
        state.phase, state.still_s, state.heard_s = "", 0.0, None
        self.alarming.pop((state.role, state.id), None)

    def crowded(self, state: MemberState) -> str:
        """Why a member that came up cannot have its devices: others that are up have them. Empty if it can."""
        for seat, device in ((own, device) for own in state.seats for device in own.devices):
            here = [
                (other, theirs)
                for other in self.states.values()
                if other.health is _UP or other.health in LEAVING
                for theirs in other.seats
                if (theirs.machine, theirs.kind) == (seat.machine, seat.kind) and device in theirs.devices
            ]
            if sum(theirs.share for _, theirs in here) > 1 + _ROUNDING:
                who = " and ".join(f"{other.role} {other.id} with {theirs.share:g}" for other, theirs in here)
                return (
                    f"found {who} of {seat.kind} {device} of machine {seat.machine}, expected a device for each, or shares of "
                    "it that make 1 together (executor.trainer_gpus, executor.replica_gpus)"
                )
        return ""

    def failure(
        self,
        state: MemberState,
        event: Down,
        now: float,
        window_s: float,
        step: int,
        troubles: Troubles,
        standbys: int = 0,
    ) -> Failure:
        """Count a failure. Returns the recovery policy's view of it.

        Args:
            window_s: seconds after which it does not count for its role and its machine any more.
        """
        starting = state.health is Health.STARTING
        trouble = troubles.failed(state.role, state.id, step, starting=starting and event.cause is not Cause.MACHINE)
        state.failures.append(step)
        self.failed = [entry for entry in self.failed if now - entry[0] < window_s]
        machine = event.machine or state.machine
        self.failed.append((now, state.role, machine))
        stood = machine or state.stands or state.stood
        return Failure(
            role=state.role,
            member=state.id,
            cause=event.cause,
            reason=event.reason,
            machine=machine,
            phase=state.phase,
            step=step,
            failures=len(state.failures),
            role_failures=sum(role == state.role for _, role, _ in self.failed),
            machine_failures=sum(where == machine for _, _, where in self.failed) if machine else 0,
            first_iteration=trouble.first_iteration,
            starting=starting,
            others=sum(other is not state and other.health is not Health.DOWN for other in self.of(state.role)),
            step_failures=trouble.step_failures,
            failed_starts=trouble.failed_starts,
            task_restarts=trouble.task_restarts,
            hybrid=state.hybrid,
            standbys=standbys,
            stood=stood,
            moved=state.moved,
            elsewhere=len(self.elsewhere(stood, event.room)),
            beside_store=any(data.machine == stood for data in self.of(DATA)),
        )

    def elsewhere(self, machine: str, room: tuple[str, ...] | None) -> list[str]:
        """The machines on which what stands on a machine could start; none if the machine is unknown.

        Args:
            machine: the machine.
            room: those with room for it, as the host says; None: every machine that is known.
        """
        known = [*self.named, *(name for name in self.machines if name not in self.named)] if room is None else room
        gone = {machine, *self.given_up}
        return [name for name in known if name not in gone] if machine else []

    def give_up(self, machine: str) -> list[MemberState]:
        """Mark a machine as no longer used. Returns the members that run there."""
        self.machines[machine] = MachineView(machine, healthy=False)
        for state in self.states.values():
            state.stands = "" if state.stands == machine and not self.named else state.stands
        return [state for state in self.states.values() if state.machine == machine]

    def has_new_machines(self) -> None:
        """Note that the run's own machines, if it has any, were started anew: those that were given up are new ones."""
        self.machines = {name: one for name, one in self.machines.items() if name not in self.named}

    @property
    def given_up(self) -> tuple[str, ...]:
        """Machines that are no longer used."""
        return tuple(machine.id for machine in self.machines.values() if not machine.healthy)

    def relays(self) -> dict[str, str]:
        """Addresses of the relays that are up, by id."""
        return {state.id: state.address for state in self.of(RELAY) if state.health is _UP}

    def sites(self) -> dict[str, str]:
        """The sites of the relays that are up and not at the trainer's, by id."""
        return {state.id: state.site for state in self.of(RELAY) if state.health is _UP and state.site}

    def relays_for(self, replica: str) -> list[MemberState]:
        """The relays that are up, best first for a replica: on its machine first, then the others in turn.

        Relays of other sites are left out while one of its own site is up: a version that is on its way there would cross the
        slow link once more.
        """
        here = self.states[REPLICA, replica]
        up = [state for state in self.of(RELAY) if state.health is _UP]
        up = [state for state in up if state.site == here.site] or up
        if up:
            index = [state.id for state in self.of(REPLICA)].index(replica) % len(up)
            up = up[index:] + up[:index]  # spreads replicas over the relays
            up.sort(key=lambda relay: relay.machine != here.machine)
        return up

    def starts_anew(self, state: MemberState) -> None:
        """Mark a member as starting: a fresh process takes its place, on machines that are not given up."""
        if state.role == REPLICA and state.stood not in self.given_up:
            state.stands = state.machine or state.stands  # it is restarted in place, unless `place` chooses by name
        state.health, state.machine, state.address = Health.STARTING, "", ""
        self._forget_signs(state)
        state.avoids = self.given_up

    def leaves(self, state: MemberState) -> None:
        """Forget a member that has no process. Others may know it by its state, which says that it is down."""
        state.health = Health.DOWN
        self._forget_signs(state)
        del self.states[state.role, state.id]

    def restarted(self) -> None:
        """Reset all members after the driver and every process died. A member that was down starts again too.

        Earlier failures no longer count.
        """
        self.failed.clear()
        for state in list(self.states.values()):
            state.failures.clear()
            state.moved = 0
            if state.health is Health.STOPPING:
                self.leaves(state)
            else:
                state.health, state.machine, state.address = Health.STARTING, "", ""
                self._forget_signs(state)

    def plain(self) -> dict[str, Any]:
        """The whole state as plain data."""
        return {f"{role} {id_}": repr(state) for (role, id_), state in self.states.items()} | {
            "machines": repr(self.machines),
            "failed": list(self.failed),
            "restarts": dict(self.restarts),
        }


def _kind(state: MemberState) -> str:
    return _HYBRID if state.hybrid else state.role


def down(member: MemberState, reason: str, cause: Cause) -> Down:
    """The event that the executor would report if it had found the member down itself."""
    return Down(member.role, member.id, reason, cause)


def machine_for(role: str, machines: Sequence[str], standing: Sequence[tuple[str, str]]) -> str:
    """The machine for a member that is about to start; empty for a role that stands on none.

    Args:
        role: its role; that of a replica on the trainer's devices is "hybrid" here.
        machines: names of the machines that may be used, in order, at least one.
        standing: role and machine of every other member, of those too that are starting there.
    """
    if role in _BESIDE:
        return ""

    def cost(machine: str) -> tuple[int, ...]:
        here = [other for other, where in standing if where == machine]
        if role == TRAINER:
            return (-here.count(_HYBRID), here.count(REPLICA))
        if role == _HYBRID:
            return (int(TRAINER not in here), -here.count(_HYBRID), len(here))
        return (int(role == REPLICA and TRAINER in here), here.count(role), len(here))

    return min(machines, key=cost)
