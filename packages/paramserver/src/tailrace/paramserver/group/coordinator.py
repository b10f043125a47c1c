"""Who belongs to a group of relays, who sends to whom, who is master (Laminar, section 4.3): events in, commands out.

    consumes     heartbeats, broken connections, relays that join, ends of pulls, the clock
    waits for    a heartbeat from each relay; none for `dead_after_s`, and the relay is dead
    unblocked by `Heard`, `Lost`, `TimePassed`

    JOINING ──heard──► ALIVE ◄──heard── SUSPECTED
       └────────────────┴──nobody listens, or silent too long──► DEAD ──answers again: Join──► JOINING, a new life

Edges are kept by level, not by message: a relay whose heartbeat shows other next hops than it should have is told again,
so an order that was lost, or that an older connection delivered late, does not last.

Pure: no clock, no I/O; the same events give the same commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.paramserver.group.messages import (
    Ask,
    Command,
    Deny,
    Done,
    Event,
    EvictRelay,
    Fetch,
    Fetched,
    Grant,
    Heard,
    Join,
    Leave,
    Lost,
    Report,
    Retarget,
    SetNext,
    TimePassed,
    Watch,
)
from tailrace.paramserver.group.pull_schedule import Assign, Expire, PullSchedule
from tailrace.paramserver.group.topology import Forest, Progress, plan

_ALL = 2**62  # more chunks than any version has


class RelayState(StrEnum):
    """Lifecycle of a relay in a group; owned by `Coordinator`."""

    JOINING = "joining"
    ALIVE = "alive"
    SUSPECTED = "suspected"
    DEAD = "dead"


@dataclass(slots=True)
class RelayMember:
    """The coordinator's state of one relay.

    Args:
        name: its name in the group.
        address: the address that it listens on.
        site: its datacenter.
        life: number of its joining.
        state: see `RelayState`.
        heard_at: time of the last sign of life, or of joining.
        moved_at: time of the last progress of any transfer to it, or of a fetch that failed.
        behind_since: since when it lacks the newest version, None if it does not.
        report: its last report.
        hops: addresses that it was told last, None before the first order of this life.
        orders: how many orders it was given in this life.
        why: the reason of its state, in words.
        denied: whether it has another token.
    """

    name: str
    address: str
    site: str
    life: int
    state: RelayState
    heard_at: float
    moved_at: float
    behind_since: float | None = None
    report: Report = field(default_factory=Report)
    hops: tuple[str, ...] | None = None
    orders: int = 0
    why: str = ""
    denied: bool = False

    @property
    def lives(self) -> bool:
        """Whether it takes part in the broadcast."""
        return self.state in (RelayState.ALIVE, RelayState.SUSPECTED)

    @property
    def progress(self) -> Progress:
        """How far it is, see `topology.elect`."""
        newest = max((stamp for _, stamp in self.report.versions), default=-1)
        chunks = {**self.report.arriving, **dict.fromkeys(self.report.sealed, _ALL)}
        arriving = max(chunks, default=-1)
        return (newest, arriving, chunks.get(arriving, 0))


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A relay as the group sees it, for people and dashboards.

    Args:
        name: its name in the group.
        address: the address that it listens on.
        site: its datacenter.
        state: see `RelayState`.
        life: number of its joining, from 1.
        versions: visible versions, oldest publication first.
        arriving: chunks in place of each version that is arriving.
        next: addresses that it sends to.
        why: why it is not alive, or what went wrong last.
    """

    name: str
    address: str
    site: str
    state: RelayState
    life: int
    versions: tuple[int, ...]
    arriving: Mapping[int, int]
    next: tuple[str, ...]
    why: str

    @classmethod
    def of(cls, member: RelayMember) -> MemberStatus:
        """The status of a member, which does not change any more."""
        return cls(
            name=member.name,
            address=member.address,
            site=member.site,
            state=member.state,
            life=member.life,
            versions=tuple(version for version, _ in member.report.versions),
            arriving=dict(member.report.arriving),
            next=member.report.next,
            why=member.why,
        )


_PATIENCE = 3


class GroupStateMachine:
    """The state machine.

    Args:
        dead_after_s: silence after which a relay is dead.
        home: the trainer's site.
        roots: data-parallel ranks that publish.
        fetch_after_s: how long a relay that lacks the newest version may make no progress before it is told to fetch it;
            `_PATIENCE` times as long if its predecessor lacks the version too.
        fetch_timeout_s: how long it may take to get a source and fetch.
    """

    def __init__(
        self,
        *,
        dead_after_s: float,
        home: str = "",
        roots: int = 1,
        fetch_after_s: float = 3.0,
        fetch_timeout_s: float = 60.0,
    ) -> None:
        self.members: dict[str, RelayMember] = {}
        self.forest: Forest | None = None
        self._dead_after_s, self._home, self._roots = dead_after_s, home, roots
        self._fetch_after_s, self._fetch_timeout_s = fetch_after_s, fetch_timeout_s
        self._pulls = PullSchedule()
        self._masters: list[tuple[str, int] | None] = [None] * roots  # name and life that each publisher was told

    def handle(self, event: Event, now: float) -> list[Command]:
        """The commands that follow from an event. Events of former incarnations and of non-members have no effect."""
        match event:
            case Join():
                return self._join(event, now)
            case Leave(name):
                return self._leave(name)
            case TimePassed():
                return self._tick(now)
            case Ask(puller, site, version, deadline):
                self._pulls.place(puller, site)
                return self._start(self._pulls.request(puller, version, deadline))
            case Done(puller):
                return self._start(self._pulls.forget(puller))
        member = self.members.get(event.name)
        if member is None or member.life != event.life or member.state is RelayState.DEAD:
            return []
        match event:
            case Heard():
                return self._heard(member, event, now)
            case Lost():
                return self._lost(member, event)
            case Fetched():
                if event.error is None or self._pulls.assignments.get(member.name) != event.source:
                    return []
                member.moved_at = now
                return self._start(self._pulls.failed(member.name))

    @property
    def formed(self) -> bool:
        """Whether there is a forest: every relay that joined at first was heard or is dead."""
        return self.forest is not None

    def master(self, root: int = 0) -> RelayMember | None:
        """The relay that a root publishes to."""
        name = None if self.forest is None else self.forest.masters[root]
        return None if name is None else self.members[name]

    def living(self) -> list[RelayMember]:
        """Relays that take part, in the order in which they joined."""
        return [member for member in self.members.values() if member.lives]

    def _join(self, event: Join, now: float) -> list[Command]:
        old = self.members.pop(event.name, None)  # a relay that comes back goes to the tail
        commands: list[Command] = []
        if old is not None and old.state is not RelayState.DEAD:
            commands += [EvictRelay(old.name, old.life, "it joined again", again=False)]
        life = 1 if old is None else old.life + 1
        self.members[event.name] = RelayMember(
            event.name, event.address, event.site, life, RelayState.JOINING, now, now, why="not heard of yet"
        )
        self._pulls.place(event.name, event.site)
        commands += self._start(self._pulls.gone(event.name))
        commands.append(Watch(event.name, life, event.address))
        return commands + (self._rebuild() if old is not None and old.lives else [])

    def _leave(self, name: str) -> list[Command]:
        member = self.members.pop(name, None)
        if member is None:
            return []
        commands: list[Command] = [EvictRelay(name, member.life, "it left the group", again=False)]
        return commands + self._start(self._pulls.gone(name)) + self._rebuild()

    def _heard(self, member: RelayMember, event: Heard, now: float) -> list[Command]:
        joined = not member.lives
        moved = joined or event.report.versions != member.report.versions
        if moved or (event.report.arriving, event.report.sealed) != (member.report.arriving, member.report.sealed):
            member.moved_at = now
        member.state, member.heard_at, member.report, member.why = RelayState.ALIVE, now, event.report, ""
        commands = self._rebuild() if joined else []
        if member.hops is not None and event.orders == member.orders and event.report.next != member.hops:
            commands.append(self._order(member, member.hops))
        return commands + (self._start(self._sources()) if moved else [])

    def _lost(self, member: RelayMember, event: Lost) -> list[Command]:
        member.denied = event.denied
        if event.gone:
            return self._bury([member], event.reason)
        if member.state is RelayState.ALIVE:
            member.state = RelayState.SUSPECTED
        member.why = event.reason
        return []

    def _tick(self, now: float) -> list[Command]:
        silent = [
            member
            for member in self.members.values()
            if member.state is not RelayState.DEAD and now - member.heard_at >= self._dead_after_s
        ]
        commands = self._bury(silent, f"it said nothing for {self._dead_after_s:.3g} s")
        for member in self.living():
            if member.state is RelayState.ALIVE and now - member.heard_at >= self._dead_after_s / 2:
                member.state, member.why = RelayState.SUSPECTED, "its heartbeat is late"
        commands += self._start(self._pulls.expire(now))
        return commands + self._fetch_what_is_late(now)

    def _bury(self, members: Iterable[RelayMember], reason: str) -> list[Command]:
        commands: list[Command] = []
        pulls: list[Assign] = []
        for member in members:
            member.state, member.report, member.hops = RelayState.DEAD, Report(), None
            member.why = f"{reason}; {member.why}" if member.why else reason
            commands.append(EvictRelay(member.name, member.life, member.why, again=True))
            pulls += self._pulls.gone(member.name)
        return commands + (self._rebuild() if commands else []) + self._start(pulls)

    def _rebuild(self) -> list[Command]:
        """The edges between live relays, and the orders that differ from earlier ones."""
        if self.forest is None and any(member.state is RelayState.JOINING for member in self.members.values()):
            return []
        living = self.living()
        self.forest = plan(
            {member.name: member.site for member in living},
            [member.name for member in living],
            {member.name: member.progress for member in living},
            home=self._home,
            roots=self._roots,
            before=self.forest,
        )
        commands: list[Command] = []
        for name, hops in self.forest.next_hops().items():
            addresses = tuple(self.members[hop].address for hop in hops)
            if self.members[name].hops != addresses:
                commands.append(self._order(self.members[name], addresses))
        for root, master in enumerate(self.forest.masters):
            told = None if master is None else (master, self.members[master].life)
            if master is not None and told != self._masters[root]:
                commands.append(Retarget(root, master, self.members[master].address))
            self._masters[root] = told
        return commands

    def _order(self, member: RelayMember, addresses: tuple[str, ...]) -> SetNext:
        member.hops, member.orders = addresses, member.orders + 1
        return SetNext(member.name, member.life, member.orders, addresses)

    # Pulls

    def _audiences(self) -> list[list[RelayMember]]:
        """Live relays by the publications that they get: each root has its own, and root 0 feeds the other sites."""
        trees = () if self.forest is None else self.forest.trees[1:]
        others = {name for tree in trees for name in tree}
        audiences = [[member for member in self.living() if member.name not in others]]
        return audiences + [[self.members[name] for name in tree if self.members[name].lives] for tree in trees]

    def _sources(self) -> list[Assign]:
        """The sources that members get. After a rollback one number has two publications; only the newer is a source."""
        assigned: list[Assign] = []
        for audience in self._audiences():
            newest: dict[int, int] = {}
            for version, stamp in (key for member in audience for key in member.report.versions):
                newest[version] = max(stamp, newest.get(version, -1))
            for member in audience:
                current = frozenset(version for version, stamp in member.report.versions if newest[version] == stamp)
                assigned += self._pulls.holds(member.name, current)
        return assigned

    def _fetch_what_is_late(self, now: float) -> list[Command]:
        """Have relays that lack the newest version and get no data fetch it, whatever is wrong with their edge."""
        hops = {} if self.forest is None else self.forest.next_hops()
        senders = {hop: name for name, into in hops.items() for hop in into}
        fetching = {*self._pulls.assignments, *self._pulls.waiting}
        commands: list[Command] = []
        for audience in self._audiences():
            newest = max((key for member in audience for key in member.report.versions), key=_stamp, default=None)
            for member in audience:
                if newest is None or newest in member.report.versions:
                    member.behind_since = None
                    continue
                if member.behind_since is None:
                    member.behind_since = now
                sender = senders.get(member.name)
                fed = sender is None or newest in self.members[sender].report.versions
                patience_s = self._fetch_after_s if fed else _PATIENCE * self._fetch_after_s
                late = now - max(member.behind_since, member.moved_at) >= patience_s
                if late and member.name not in fetching:
                    commands += self._start(self._pulls.request(member.name, newest[0], now + self._fetch_timeout_s))
        return commands

    def _start(self, pulls: Iterable[Assign | Expire]) -> list[Command]:
        commands: list[Command] = []
        for pull in pulls:
            member = self.members.get(pull.puller)
            if isinstance(pull, Expire):
                if member is None:
                    commands.append(Deny(pull.puller, pull.error))
                else:
                    member.moved_at, member.why = member.heard_at, str(pull.error)
            elif self._pulls.assignments.get(pull.puller) == pull.source:  # and not overtaken by another death
                source = self.members[pull.source]
                commands.append(
                    Grant(pull.puller, pull.version, source.name, source.address)
                    if member is None
                    else Fetch(member.name, member.life, pull.version, source.name, source.address)
                )
        return commands


def _stamp(key: tuple[int, int]) -> int:
    return key[1]
