"""A group's state of one relay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.paramserver.group.messages import Report
from tailrace.paramserver.group.topology import Progress

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
