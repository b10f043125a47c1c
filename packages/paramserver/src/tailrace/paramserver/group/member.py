"""What a group knows of one relay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tailrace.paramserver.group.messages import Report
from tailrace.paramserver.group.topology import Progress

_ALL = 2**62  # more chunks than any version has


class MemberState(StrEnum):
    """Lifecycle of a relay in a group; owned by `Coordinator`."""

    JOINING = "joining"
    ALIVE = "alive"
    SUSPECTED = "suspected"
    DEAD = "dead"


@dataclass(slots=True)
class Member:
    """What the coordinator knows of a relay.

    Args:
        name: its name in the group.
        address: where it listens.
        site: its datacenter.
        life: number of its joining.
        state: see `MemberState`.
        heard_at: time of the last sign of life, or of joining.
        moved_at: time of the last progress of any transfer to it, or of a fetch that failed.
        behind_since: since when it lacks the newest version, None if it does not.
        report: what it said last.
        hops: addresses that it was told last, None before the first order of this life.
        orders: how many orders it was given in this life.
        why: of its state, for people.
        denied: it holds another token.
    """

    name: str
    address: str
    site: str
    life: int
    state: MemberState
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
        return self.state in (MemberState.ALIVE, MemberState.SUSPECTED)

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
        name: in the group.
        address: where it listens.
        site: its datacenter.
        state: see `MemberState`.
        life: number of its joining, from 1.
        versions: visible versions, oldest publication first.
        arriving: chunks in place of each version that is arriving.
        next: addresses that it sends to.
        why: why it is not alive, or what went wrong last.
    """

    name: str
    address: str
    site: str
    state: MemberState
    life: int
    versions: tuple[int, ...]
    arriving: Mapping[int, int]
    next: tuple[str, ...]
    why: str

    @classmethod
    def of(cls, member: Member) -> MemberStatus:
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
