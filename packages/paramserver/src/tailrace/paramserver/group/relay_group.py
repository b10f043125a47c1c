"""A group of relays under one coordinator: who lives, who is master, and the edges between them, kept by itself.

    consumes     heartbeats of every relay (one connection and thread each), `join`, `leave`, readers' asks for a source
    waits for    nothing itself but the clock: a tick every half heartbeat
    unblocked by `close`

The coordinator decides, this class carries out: `SetNext` on the relay's own connection (see `RelayWatch`), `Fetch` (see
`Fetches`), `Retarget` as a call of `on_master` (see `Announcer`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from tailrace.paramserver.errors import (
    AuthenticationFailed,
    ChunkDamaged,
    ParamServerError,
    ProtocolError,
    PublishTimeout,
    RelayTimeout,
    RelayUnreachable,
    SlotBusy,
    VersionNotYet,
)
from tailrace.paramserver.group.coordinator import GroupStateMachine, MemberStatus
from tailrace.paramserver.group.link import Announcer, Fetches, OnMaster, RelayWatch
from tailrace.paramserver.group.messages import (
    Ask,
    Command,
    Deny,
    Done,
    Event,
    EvictRelay,
    Fetch,
    Grant,
    Join,
    Leave,
    Retarget,
    SetNext,
    TimePassed,
    Watch,
)
from tailrace.paramserver.machine.host import HOST
from tailrace.paramserver.machine.protocol import HostInterface, Thread
from tailrace.paramserver.wire.authentication import check_token

_log = logging.getLogger(__name__)
HEARTBEAT_S = 0.1
DEAD_AFTER_S = 2.0
RETRY_S = 0.5
_CLOSE_S = 5.0
_WORTH_ANOTHER_TRY = (RelayUnreachable, RelayTimeout, SlotBusy, ChunkDamaged, ProtocolError)


class RelayGroup:
    """Watches relays, keeps the broadcast forest among the living, and names the master.

    Args:
        relays: addresses, in the order of the chain; or names and their addresses. A bare address is its own name. Others
            `join` later.
        token: shared secret.
        sites: datacenter of each relay by name; those left out are at `home`.
        home: the trainer's datacenter.
        on_master: called with the master's address when another relay becomes master, on a thread of its own:
            `publisher.retarget`. For several data-parallel roots one for each, in order of their rank.
        heartbeat_s: seconds between two heartbeats.
        dead_after_s: silence after which a relay is evicted. A process that ended is seen at once, by its connection.
        fetch_after_s: how long a relay that lacks the newest version may make no progress before it fetches it from
            another one than its predecessor.
        fetch_timeout_s: how long such a fetch may take.
        timeout_s: how long the first contact may take; None does not wait for it, and there need be no relay yet.
        machine: the machine that it runs on.

    Raises:
        ValueError: no relay where one is waited for, or one is there twice.
        AuthenticationFailed: the relays hold another token.
        RelayUnreachable: none of the relays answers.
    """

    def __init__(
        self,
        relays: Sequence[str] | Mapping[str, str],
        *,
        token: str,
        sites: Mapping[str, str] | None = None,
        home: str = "",
        on_master: OnMaster | Sequence[OnMaster] | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        dead_after_s: float = DEAD_AFTER_S,
        fetch_after_s: float = 3.0,
        fetch_timeout_s: float = 60.0,
        timeout_s: float | None = 10.0,
        machine: HostInterface = HOST,
    ) -> None:
        addresses = dict(relays) if isinstance(relays, Mapping) else {address: address for address in relays}
        if (not addresses and timeout_s is not None) or len(set(addresses.values())) < len(relays):
            raise ValueError(f"found the relays {list(addresses.values())}, expected at least one, and each once")
        if not 0 < heartbeat_s < dead_after_s:
            raise ValueError(f"found heartbeats every {heartbeat_s} s and death after {dead_after_s} s, expected less")
        self._token, self._machine, self._home = check_token(token), machine, home
        self._sites = dict(sites or {})
        self._heartbeat_s, self._dead_after_s = heartbeat_s, dead_after_s
        self._fetches = Fetches(
            self._post, token=token, timeout_s=fetch_timeout_s, patience_s=dead_after_s, machine=machine
        )
        callbacks = [on_master] if on_master is None or callable(on_master) else list(on_master)
        self._announcer = Announcer(callbacks, machine)
        self._coordinator = GroupStateMachine(
            dead_after_s=dead_after_s,
            home=home,
            roots=self._announcer.roots,
            fetch_after_s=fetch_after_s,
            fetch_timeout_s=fetch_timeout_s,
        )
        self._changed = machine.condition()
        self._links: dict[str, RelayWatch] = {}
        self._ended: list[RelayWatch] = []
        self._answers: dict[str, Grant | Deny] = {}
        self._again: dict[int, float] = {}  # when to tell a root its master again
        self._located = -1
        self._pullers = itertools.count(1)
        self._closed = False
        for name, address in addresses.items():
            self._post(Join(name, address, self._site(name)))
        self._ticks = machine.spawn(self._tick, "group ticks")
        if timeout_s is None:
            return
        try:
            self._form(list(addresses.values()), timeout_s)
        except BaseException:
            self.close()
            raise

    @property
    def master(self) -> str:
        """Address of the relay to publish to.

        Raises:
            RelayUnreachable: no relay lives.
        """
        return self.masters[0]

    @property
    def masters(self) -> list[str]:
        """Address of the master of every root that has one, in order of their rank.

        Raises:
            RelayUnreachable: no relay lives.
        """
        with self._changed:
            found = [self._coordinator.master(root) for root in range(self._announcer.roots)]
        masters = [member.address for member in found if member is not None]
        if not masters:
            raise RelayUnreachable("no relay of the group lives; start one, or tell the group of one with `join`")
        return masters

    def follow(self, on_master: OnMaster, root: int = 0) -> None:
        """Call this from now on when another relay becomes the root's master, and soon with the present one."""
        with self._changed:
            self._announcer.follow(on_master, root)
            self._tell(root)

    def published(self, version: int, error: ParamServerError | None, root: int = 0) -> None:  # noqa: ARG002
        """A publisher's `on_published`: a failed push is soon tried again, to the relay that is then master.

        Without it a version whose push was cut off, while the master lives, waits for the next `publish`.
        """
        if isinstance(error, _WORTH_ANOTHER_TRY):
            with self._changed:
                self._again.setdefault(root, self._machine.now() + RETRY_S)

    def addresses(self) -> list[str]:
        """Addresses of the living relays, in the order in which they joined."""
        with self._changed:
            return [member.address for member in self._coordinator.living()]

    def locate(self, version: int | None = None, *, site: str | None = None) -> list[str]:
        """Addresses of living relays that hold a version completely; of all living ones for None.

        Those of a site come first, and every call begins with the next one, so that readers spread over them. For
        readers (`RelayReader(group.locate, ...)`): what one relay began, another one goes on with.
        """
        with self._changed:
            found = [
                member
                for member in self._coordinator.living()
                if version is None or version in [held for held, _ in member.report.versions]
            ]
            near = [member.address for member in found if site is None or member.site == site]
            far = [member.address for member in found if site is not None and member.site != site]
            self._located += 1
            return _rotated(near, self._located) + _rotated(far, self._located)

    @contextmanager
    def source(self, version: int, *, site: str | None = None, timeout_s: float = 30.0) -> Iterator[str]:
        """Address of a relay to pull a version from over the network, which serves nobody else meanwhile.

        Pullers wait in order; sources of the same site come first (RobustRL, section 5.2.1). Leave the context once the pull is
        over, however it ended.

        Raises:
            VersionNotYet: no source was free within `timeout_s`, or none holds the version.
            RelayUnreachable: the group is closed.
        """
        deadline = self._machine.now() + timeout_s
        with self._changed:
            puller = f"reader {next(self._pullers)}"
            self._post(Ask(puller, self._home if site is None else site, version, deadline))
            while puller not in self._answers and (remaining := deadline - self._machine.now()) > 0:
                if self._closed:
                    raise RelayUnreachable("the group is closed")
                self._changed.wait(remaining)
            answer = self._answers.pop(puller, None)
        try:
            if not isinstance(answer, Grant):
                raise answer.error if answer else VersionNotYet(f"no source for version {version} in {timeout_s:.3g} s")
            yield answer.address
        finally:
            self._post(Done(puller))
            with self._changed:
                self._answers.pop(puller, None)

    def wait(self, version: int, timeout_s: float) -> None:
        """Wait until every living relay shows a version.

        Raises:
            PublishTimeout: not within `timeout_s`; names the relays that lack it.
            RelayUnreachable: no relay lives, or the group is closed.
        """

        def late() -> list[str] | None:
            living = self._coordinator.living()
            return (
                [m.name for m in living if version not in [held for held, _ in m.report.versions]] if living else None
            )

        self._wait_for(late, f"version {version} did not reach", timeout_s)

    def wait_sites(self, version: int, timeout_s: float) -> None:
        """Wait until each site where a relay lives has one that shows a version, or a newer one.

        Raises:
            PublishTimeout: not within `timeout_s`; names the sites that lack it.
            RelayUnreachable: no relay lives, or the group is closed.
        """

        def late() -> list[str] | None:
            newest: dict[str, int] = {}
            for member in self._coordinator.living():
                shown = max((held for held, _ in member.report.versions), default=-1)
                newest[member.site] = max(shown, newest.get(member.site, -1))
            behind = sorted(site for site, shown in newest.items() if shown < version)
            return [site or "the trainer's" for site in behind] if newest else None

        self._wait_for(late, f"version {version} did not reach the sites", timeout_s)

    def _wait_for(self, late: Callable[[], list[str] | None], words: str, timeout_s: float) -> None:
        """Wait until nobody is late. `late` names those who are; None if no relay lives. `words` come before the names."""
        deadline = self._machine.now() + timeout_s
        with self._changed:
            while True:
                names = late()
                if self._closed or names is None:
                    raise RelayUnreachable("the group is closed" if self._closed else "no relay of the group lives")
                if not names:
                    return
                remaining = deadline - self._machine.now()
                if remaining <= 0:
                    raise PublishTimeout(f"{words} {', '.join(names)} in {timeout_s:.3g} s")
                self._changed.wait(remaining)

    def join(self, address: str, *, name: str | None = None, site: str | None = None) -> None:
        """Take a relay in, at the tail: a new one, or one that came back at another address. Returns at once."""
        name = address if name is None else name
        with self._changed:
            if site is not None:
                self._sites[name] = site
            self._post(Join(name, address, self._site(name)))

    def leave(self, name: str) -> None:
        """Remove a relay from the group. It keeps its versions. Returns at once."""
        self._post(Leave(name))

    def status(self) -> dict[str, MemberStatus]:
        """Every relay that belongs to the group, the dead ones too, by name."""
        with self._changed:
            return {name: MemberStatus.of(member) for name, member in self._coordinator.members.items()}

    def close(self) -> None:
        """Stop watching. The relays go on as they are."""
        with self._changed:
            self._closed = True
            links = [*self._links.values(), *self._ended]
            self._changed.notify_all()
        for link in links:
            link.stop()
        self._announcer.close()
        self._fetches.close()
        deadline = self._machine.now() + _CLOSE_S
        endings: list[Thread | Announcer | Fetches | RelayWatch] = [self._ticks, self._announcer, self._fetches, *links]
        for ending in endings:
            ending.join(max(0.0, deadline - self._machine.now()))

    def __enter__(self) -> RelayGroup:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _site(self, name: str) -> str:
        return self._sites.get(name, self._home)

    def _form(self, addresses: list[str], timeout_s: float) -> None:
        deadline = self._machine.now() + timeout_s
        with self._changed:
            while not self._coordinator.formed and (remaining := deadline - self._machine.now()) > 0:
                self._changed.wait(remaining)
            if self._coordinator.formed and self._coordinator.living():
                return
            members = list(self._coordinator.members.values())
        found = f"found no living relay among {', '.join(addresses)}, expected one: "
        found += "; ".join(f"{member.name}: {member.why}" for member in members)
        raise AuthenticationFailed(found) if all(member.denied for member in members) else RelayUnreachable(found)

    def _post(self, event: Event) -> None:
        """Give an event to the coordinator and carry out its commands, without waiting."""
        with self._changed:
            if self._closed:
                return
            for command in self._coordinator.handle(event, self._machine.now()):
                self._carry_out(command)
            self._changed.notify_all()

    def _carry_out(self, command: Command) -> None:
        match command:
            case Watch(name):
                self._end_link(name)  # it knocks, if the relay was dead
                site = self._coordinator.members[name].site
                self._links[name] = RelayWatch(
                    command,
                    site,
                    self._post,
                    token=self._token,
                    heartbeat_s=self._heartbeat_s,
                    patience_s=self._dead_after_s,
                    machine=self._machine,
                )
            case EvictRelay(name, life, reason, again):
                level = logging.WARNING if again else logging.INFO  # it died, or was stopped on purpose
                _log.log(level, "relay %s (life %d) is out of the group: %s", name, life, reason)
                link = self._links.get(name)
                if link is not None and link.life == life and again:
                    link.evict()
                elif link is not None and link.life == life:
                    self._end_link(name)
            case SetNext(name, life):
                link = self._links.get(name)
                if link is not None and link.life == life:
                    link.order(command)
            case Retarget():
                self._announcer.put(command)
            case Fetch(name):
                self._fetches.start(command, self._coordinator.members[name].address)
            case Grant() | Deny():
                self._answers[command.puller] = command

    def _tell(self, root: int) -> None:
        master = self._coordinator.master(root)
        if master is not None:
            self._announcer.put(Retarget(root, master.name, master.address))

    def _end_link(self, name: str) -> None:
        self._ended = [link for link in self._ended if link.alive()]
        if (link := self._links.pop(name, None)) is not None:
            link.stop()
            self._ended.append(link)

    def _tick(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
            self._post(TimePassed())
            with self._changed:
                for root in [root for root, at in self._again.items() if at <= self._machine.now()]:
                    del self._again[root]
                    self._tell(root)
            self._machine.sleep(self._heartbeat_s / 2)


def _rotated(addresses: list[str], by: int) -> list[str]:
    first = by % len(addresses) if addresses else 0
    return addresses[first:] + addresses[:first]
