"""The fleet: owns the load of every replica. `members.py` knows whether a replica lives.

A replica's load may be used only if a snapshot shows every command that it was sent. Then StaleFlow's equation 1 must hold: the
trajectories that run and wait in the engine are those that the controller believes to be there.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass, field, fields
from typing import Any

from tailrace.contracts import Health, Interrupted, Purpose, Reason, ReplicaView, Snapshot, TrajectoryView
from tailrace.controller.errors import ControllerError
from tailrace.controller.members import MemberState
from tailrace.controller.trajectories import TrajectoryState

MOVE, EVICTION, FOR_PULL, EMPTIED = "move", "eviction", "pull", "emptied"
"""What an `Interrupt` is for."""


class Assigned(Mapping[str, TrajectoryView]):
    """Trajectories on one replica, in order of routing.

    Views are created when a policy first reads one and are then kept; most policies read none.
    `states` holds the trajectories, `seen` the views of all once a policy has read one. `generated` are the response tokens
    that each trajectory would have that ran here all the time.

    Args:
        view: creates the view of a trajectory, from its state and the tokens that it has probably generated here.
    """

    __slots__ = ("_view", "generated", "seen", "states")

    def __init__(self, view: Callable[[TrajectoryState, int], TrajectoryView]) -> None:
        self.states: dict[str, TrajectoryState] = {}
        self.generated = 0.0
        self.seen: dict[str, TrajectoryView] | None = None
        self._view = view

    def add(self, states: Sequence[TrajectoryState]) -> None:
        """Add trajectories that were routed here."""
        assigned = self.states
        for state in states:
            assigned[state.id] = state
            state.since = self.generated
        if self.seen is not None:
            self.seen.update([(state.id, self._view(state, 0)) for state in states])

    def advanced(self, tokens: float) -> None:
        """Each trajectory has probably generated so many tokens more."""
        if tokens > 0:
            self.generated += tokens
            self.seen = None

    def outdated(self) -> None:
        """What views say has changed: they are created again."""
        self.seen = None

    def clear(self) -> None:
        """Remove all trajectories."""
        self.states, self.seen, self.generated = {}, None, 0.0

    def _views(self) -> dict[str, TrajectoryView]:
        if self.seen is None:
            generated = self.generated
            self.seen = {name: self._view(state, int(generated - state.since)) for name, state in self.states.items()}
        return self.seen

    def __getitem__(self, trajectory: str) -> TrajectoryView:
        return self._views()[trajectory]

    def __iter__(self) -> Iterator[str]:
        return iter(self.states)

    def __len__(self) -> int:
        return len(self.states)

    def __contains__(self, trajectory: object) -> bool:
        return trajectory in self.states

    def values(self) -> ValuesView[TrajectoryView]:
        """The views, in order of routing."""
        return self._views().values()

    def items(self) -> ItemsView[str, TrajectoryView]:
        """Names and views, in order of routing."""
        return self._views().items()


@dataclass(slots=True)
class ReplicaState:
    """One replica.

    `assigned` holds trajectories that were routed and have not come back; `incoming` counts those that move here. `away` has
    those that come back from environments, which it does not hold meanwhile. `sent` is the number of the last command to this
    process. `evaluating` counts evaluation trajectories in `assigned` and `away`. `aborted` counts trajectories that left by
    an `Abort` which its snapshots do not show yet. After failed pulls it gets no further pull before
    `pulls_from_s`, on the run's clock. `source` is the address that it was told first to pull from, while it does. `pull_waits`
    is the reason of a pull for which every source is busy, so that it was not told of it yet; it generates meanwhile, and gets
    the newest version in the end unless `pulls_old` says that it must be this one. `offered` is the version that
    others may pull from it. `released` says that a repack has emptied it since it last got work or weights.
    `differed` says that its engine had other weights than were published, and that it has served none since.
    `preemptions` counts those of this process, `preempted` those of all its processes; `cached` and `cached_tokens` likewise
    count tokens that its prefix cache had. `emptied` says how often that was emptied, `filled` how many tokens it took in.
    `cells` are the trainer's cells on its `devices`. While its devices are `lent` to these cells, it gets no work; they are
    `kept` where a judge stands on one of these cells. The last snapshot of this process came at `told_s`, on the run's clock,
    and the last sign of a token at `moved_s`. `asked` says what each `Interrupt` was for, by its number, that may still be
    answered.
    """

    id: str
    capacity: int
    assigned: Assigned
    member: MemberState
    version: int | None = None
    pulling: int | None = None
    evaluating: int = 0
    aborted: int = 0
    incoming: int = 0
    kv: float = 0.0
    kv_before: float = 0.0
    kv_peak: float = 0.0
    kv_capacity_tokens: int = 0
    preemptions: int = 0
    running: int = 0
    waiting: int = 0
    max_running: int = 0
    sent: int = 0
    fresh: bool = False
    moving_out: bool = False
    asked: dict[int, str] = field(default_factory=dict)
    released: bool = False
    failed_pulls: int = 0
    differed: bool = False
    pulls_from_s: float = 0.0
    source: str = ""
    pull_waits: Reason | None = None
    pulls_old: bool = False
    offered: int | None = None
    preempted: int = 0
    cached: int = 0
    cached_tokens: int = 0
    emptied: int = 0
    filled: float = 0.0
    devices: tuple[int, ...] = ()
    cells: tuple[int, ...] = ()
    kept: bool = False
    lent: bool = False
    told_s: float | None = None
    moved_s: float = 0.0
    away: dict[str, TrajectoryState] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        """Number of trajectories that it holds or is about to receive, those in environments included."""
        return len(self.assigned.states) + self.incoming + len(self.away)

    @property
    def serves(self) -> bool:
        """Whether trajectories may be routed to it now."""
        return (
            self.member.health is Health.UP
            and self.version is not None
            and self.pulling is None
            and not self.moving_out
            and not self.lent
        )

    def view(self, opens: Callable[[ReplicaView], bool]) -> ReplicaView:
        """The replica's view for policies.

        Args:
            opens: says from the view whether it may be given groups that have not started.
        """
        view = ReplicaView(
            self.id,
            self.version,
            self.pulling is not None or self.moving_out,
            len(self.assigned.states) + self.incoming + len(self.away),
            self.capacity,
            self.kv,
            self.kv_before,
            self.kv_peak,
            self.waiting,
            self.fresh,
            self.running,
            self.kv_capacity_tokens,
            True,
            self.evaluating > 0,
            self.assigned,
            self.preemptions,
            self.cells,
            self.member.pool,
            self.member.site,
            len(self.away),
            self.max_running,
            self.kept,
        )
        if not opens(view):
            object.__setattr__(view, "open", False)  # the view is not in use yet
        return view

    def without_room(self, room: int) -> tuple[str, ...]:
        """Its trajectories whose weights are not among the newest of so many versions: those that a pull interrupts."""
        if not room:
            return tuple(self.assigned)
        states = self.assigned.states
        newest = sorted({state.under or 0 for state in states.values()}, reverse=True)[:room]
        return tuple([name for name, state in states.items() if (state.under or 0) not in newest])

    def left(self, trajectory: str, *, evaluation: bool) -> None:
        """Remove a trajectory. If it was the last one of a replica being emptied, the replica is released."""
        assigned = self.assigned
        if assigned.states.pop(trajectory, None) is not None:
            if assigned.seen is not None:
                assigned.seen.pop(trajectory, None)
            if evaluation:
                self.evaluating -= 1
        if self.moving_out and not assigned.states:
            self.moving_out, self.released = False, True

    def waits_for(self, version: int) -> bool:
        """Whether a repack has released it for weights that are this new (Laminar, section 5.1), and it has older ones."""
        return self.released and self.version is not None and self.version < version

    def awaits(self, state: TrajectoryState) -> None:
        """Make this the home of a trajectory that is in an environment."""
        state.home, self.away[state.id] = self.id, state
        self.evaluating += state.purpose is Purpose.EVAL

    def awaits_no_more(self, state: TrajectoryState) -> None:
        """Forget a trajectory in an environment, if this is its home."""
        if self.away.pop(state.id, None) is not None:
            self.evaluating -= state.purpose is Purpose.EVAL

    def hands_over(self, home: ReplicaState | None) -> None:
        """Give its trajectories in environments another home; None: they get one when they come back. Nothing is moved."""
        for state in list(self.away.values()):
            self.awaits_no_more(state)
            state.home = None
            if home is not None:
                home.awaits(state)

    def reset(self) -> None:
        """Forget all state of the process that died."""
        self.hands_over(None)
        self.version, self.pulling, self.moving_out, self.released = None, None, False, False
        self.source, self.pull_waits, self.pulls_old, self.offered = "", None, False, None
        self.asked.clear()
        self.assigned.clear()
        self.evaluating = self.aborted = self.incoming = 0
        self.kv = self.kv_before = self.kv_peak = 0.0
        self.running = self.waiting = self.sent = self.preemptions = self.cached = 0
        self.emptied += 1
        self.fresh = self.lent = False
        self.told_s = None


class _Started(dict[str, "ReplicaState"]):
    """Replicas by name, which says what is wrong with another name."""

    def __missing__(self, name: str) -> ReplicaState:
        raise ControllerError(f"found replica {name!r}, expected one that was started: {', '.join(self) or 'none was'}")


@dataclass(slots=True)
class Replicas:
    """All replicas, in the order in which they were first started.

    `contradictions` counts snapshots that violate equation 1: a replica has more or fewer trajectories than expected. `moves`
    counts replicas of which relocation moved work, `evictions` trajectories that it interrupted, and `interrupting_pulls` the
    pulls that interrupted work.

    Args:
        view: creates the view of a running trajectory; see `Assigned`.
        follows: whether to estimate how far running trajectories are, since what is left of them is predicted.
    """

    view: Callable[[TrajectoryState, int], TrajectoryView]
    follows: bool = False
    replicas: dict[str, ReplicaState] = field(default_factory=_Started)
    contradictions: int = 0
    moves: int = 0
    evictions: int = 0
    interrupting_pulls: int = 0

    def add(self, member: MemberState, capacity: int) -> ReplicaState:
        """Add a replica that is starting."""
        state = ReplicaState(member.id, capacity, Assigned(self.view), member)
        self.replicas[member.id] = state
        return state

    def plain(self) -> dict[str, Any]:
        """The whole state as plain data."""
        replicas = {
            replica.id: {each.name: getattr(replica, each.name) for each in fields(replica) if each.name != "member"}
            | {"assigned": list(replica.assigned), "away": list(replica.away)}
            for replica in self.replicas.values()
        }
        counts = (self.contradictions, self.moves, self.evictions, self.interrupting_pulls)
        return {"replicas": replicas, "counts": counts}

    def up(self) -> list[ReplicaState]:
        """Replicas that are up and have their devices."""
        up = Health.UP
        return [replica for replica in self.replicas.values() if replica.member.health is up and not replica.lent]

    def routed(self, replica: ReplicaState, trajectories: Sequence[TrajectoryState], *, evaluations: int) -> None:
        """Add trajectories to a replica; the peak of its KV usage starts anew."""
        replica.assigned.add(trajectories)
        replica.evaluating += evaluations
        replica.kv_peak, replica.released = replica.kv, False

    def comes_back(self, state: TrajectoryState) -> str | None:
        """Take a trajectory out of its environment. Returns its home; None if it has none."""
        home, state.home = state.home, None
        if home is not None:
            self.replicas[home].awaits_no_more(state)
        return home

    def commanded(self, replica: ReplicaState, seq: int) -> int:
        """Note a command to a replica, whose load is unknown until a snapshot shows it. Returns the previous command."""
        before, replica.sent, replica.fresh = replica.sent, seq, False
        return before

    def interrupted(self, event: Interrupted, *, evaluation: bool) -> None:
        """A replica no longer has a trajectory. Count what that was for: a trajectory may finish before it is stopped."""
        replica, seq = self.replicas[event.replica], event.answers
        what = None if seq is None else replica.asked.get(seq)
        if what == EVICTION:
            self.evictions += 1
        elif what is not None and seq is not None:
            del replica.asked[seq]
            self.moves += what == MOVE
            self.interrupting_pulls += what == FOR_PULL
        replica.left(event.trajectory, evaluation=evaluation)

    def observed(self, snapshot: Snapshot, now: float) -> None:
        """Take over a snapshot that came at `now`, in seconds on the run's clock."""
        replica = self.replicas.get(snapshot.replica)
        if replica is None or replica.member.health is not Health.UP:
            return
        before, replica.told_s = replica.told_s, now
        if before is not None:
            self._advance(replica, snapshot, now - before)
        if snapshot.tokens_per_s > 0:
            replica.moved_s = now
        replica.kv, replica.running, replica.waiting = snapshot.kv, snapshot.running, snapshot.waiting
        replica.kv_capacity_tokens, replica.max_running = snapshot.kv_capacity_tokens, snapshot.max_running
        replica.preempted += max(0, snapshot.preemptions - replica.preemptions)
        replica.preemptions = snapshot.preemptions
        replica.cached_tokens += max(0, snapshot.cached_tokens - replica.cached)
        replica.cached = snapshot.cached_tokens
        replica.kv_peak = max(replica.kv_peak, snapshot.kv)
        replica.fresh = snapshot.last_seq >= replica.sent
        if replica.fresh:
            held = snapshot.running + snapshot.waiting
            surplus = held - len(replica.assigned)
            if surplus == 0:
                replica.aborted = 0
            elif not 0 < surplus <= replica.aborted:
                self.contradictions += 1

    def _advance(self, replica: ReplicaState, snapshot: Snapshot, seconds: float) -> None:
        """Note what was generated since the last snapshot; estimate that each running trajectory has an equal part of it."""
        generated = snapshot.tokens_per_s * seconds
        replica.filled += generated
        running = (replica.running + snapshot.running) / 2
        if running and self.follows:
            replica.assigned.advanced(generated / max(1.0, running))

    def sampled(self) -> None:
        """Store the current KV usage of each replica as that of the previous periodic sample."""
        for replica in self.replicas.values():
            replica.kv_before = replica.kv
