"""What a group's coordinator is told, and what it orders. Metadata only; times come beside the events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tailrace.paramserver.errors import ParamServerError


@dataclass(frozen=True, slots=True)
class Report:
    """A relay's account of itself, as far as the group needs it.

    Args:
        versions: version and stamp of what is visible, oldest publication first.
        arriving: chunks in place of each version that is arriving.
        next: addresses of its next hops.
        sealed: versions that are whole but not visible yet.
    """

    versions: tuple[tuple[int, int], ...] = ()
    arriving: Mapping[int, int] = field(default_factory=dict)
    next: tuple[str, ...] = ()
    sealed: tuple[int, ...] = ()


# Events. A `life` is the number of a relay's joining: what an earlier life says is not heard any more.


@dataclass(frozen=True, slots=True)
class Join:
    """A relay is to belong to the group: a new one, or one that came back, perhaps at another address."""

    name: str
    address: str
    site: str


@dataclass(frozen=True, slots=True)
class Heard:
    """A heartbeat. `orders` counts the `SetNext` that were carried out before the relay was asked."""

    name: str
    life: int
    orders: int
    report: Report


@dataclass(frozen=True, slots=True)
class Lost:
    """The connection to a relay broke, or there is none.

    Args:
        gone: nobody listens at its address any more, or it holds another token: it is dead, not slow.
        reason: what happened, in words.
        denied: whether it has another token.
    """

    name: str
    life: int
    gone: bool
    reason: str
    denied: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """A `Fetch` ended; `error` says why without success."""

    name: str
    life: int
    version: int
    source: str
    error: str | None


@dataclass(frozen=True, slots=True)
class Leave:
    """A relay is to belong to the group no more."""

    name: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A reader wants to pull a version over the network, until `deadline`."""

    puller: str
    site: str
    version: int
    deadline: float


@dataclass(frozen=True, slots=True)
class Done:
    """A reader's pull is over, or it waits no more."""

    puller: str


@dataclass(frozen=True, slots=True)
class TimePassed:
    """Time passed."""


Event = Join | Heard | Lost | Fetched | Leave | Ask | Done | TimePassed


# Commands.


@dataclass(frozen=True, slots=True)
class Watch:
    """Open a connection to a relay for this incarnation, and report its answers."""

    name: str
    life: int
    address: str


@dataclass(frozen=True, slots=True)
class EvictRelay:
    """A relay is dead or has left: end its connection. `again`: report with `Join` when it answers."""

    name: str
    life: int
    reason: str
    again: bool


@dataclass(frozen=True, slots=True)
class SetNext:
    """Tell a relay its next hops. `order` is the number of this command in the relay's life, from 1."""

    name: str
    life: int
    order: int
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Retarget:
    """Tell a root's publisher its master."""

    root: int
    name: str
    address: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Tell a relay to pull what it lacks of a version from another one."""

    name: str
    life: int
    version: int
    source: str
    address: str


@dataclass(frozen=True, slots=True)
class Grant:
    """Tell a reader its source."""

    puller: str
    version: int
    source: str
    address: str


@dataclass(frozen=True, slots=True)
class Deny:
    """Tell a reader that its pull is over without success."""

    puller: str
    error: ParamServerError


Command = Watch | EvictRelay | SetNext | Retarget | Fetch | Grant | Deny
