"""Chooses the source of each relay's pull (RobustRL, section 5.2.1).

A source serves one puller at a time, so pulls share no link; a puller that has finished is a source for the next ones,
so n pullers of one source are served in about log2(n) rounds. Sources of the puller's own site come first. Into a site
where nobody holds the version only one puller pulls at a time; the others of that site wait for it and then pull from
it (StreamRL, section 6). When a source dies, its puller gets another one, before all who still wait; what it has
already is the transfer's business (resume), not this schedule's.

Pure: no clock, no I/O. Each method returns what is to be done, in order.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.paramserver.errors import VersionNotYet


@dataclass(frozen=True, slots=True)
class Assign:
    """`puller` pulls `version` from `source` now."""

    puller: str
    version: int
    source: str


@dataclass(frozen=True, slots=True)
class Expire:
    """The pull is over without success. `error` says why, for who waits on it."""

    puller: str
    version: int
    error: VersionNotYet


@dataclass(slots=True)
class _Pull:
    version: int
    order: int
    deadline: float
    source: str | None = None
    refused: frozenset[str] = frozenset()  # sources that failed it


class PullSchedule:
    """Assigns sources to pullers. A name is one node: a relay, or a reader that pulls over the network.

    Invariants: a source has one puller at most; a puller has one pull at most; nobody pulls from itself.

    Args:
        sites: the site of each node, "" where it is not named.
    """

    def __init__(self, sites: Mapping[str, str] | None = None) -> None:
        self._sites = dict(sites or {})
        self._holdings: dict[str, frozenset[int]] = {}
        self._pulls: dict[str, _Pull] = {}
        self._serving: dict[str, str] = {}  # source -> puller
        self._order = itertools.count()

    @property
    def assignments(self) -> dict[str, str]:
        """The source of every puller that has one."""
        return {puller: source for source, puller in self._serving.items()}

    @property
    def waiting(self) -> tuple[str, ...]:
        """Pullers without a source, in order."""
        waiting = [puller for puller, pull in self._pulls.items() if pull.source is None]
        return tuple(sorted(waiting, key=lambda puller: self._pulls[puller].order))

    def version_of(self, puller: str) -> int | None:
        """The version that a node pulls or waits for."""
        pull = self._pulls.get(puller)
        return None if pull is None else pull.version

    def place(self, node: str, site: str) -> None:
        """Name a node's site."""
        self._sites[node] = site

    def holds(self, node: str, versions: frozenset[int]) -> list[Assign]:
        """A node holds these versions completely, and no others. One that it pulled and now holds is finished."""
        self._holdings[node] = versions
        pull = self._pulls.get(node)
        if pull is not None and pull.version in versions:
            self._end(node)
        return self._assign()

    def gone(self, node: str) -> list[Assign]:
        """A node died: it neither serves nor pulls any more. Whom it served gets another source first."""
        self._holdings.pop(node, None)
        self._end(node)
        if (puller := self._serving.pop(node, None)) is not None:
            self._pulls[puller].source = None
        return self._assign()

    def forget(self, node: str) -> list[Assign]:
        """A node that comes no more is gone, with its site."""
        self._sites.pop(node, None)
        return self.gone(node)

    def request(self, puller: str, version: int, deadline: float) -> list[Assign]:
        """A node asks for a version, until `deadline`. Asking again for the same one changes the deadline only."""
        pull = self._pulls.get(puller)
        if pull is not None and pull.version == version:
            pull.deadline = deadline
            return []
        self._end(puller)
        if version not in self._holdings.get(puller, frozenset()):
            self._pulls[puller] = _Pull(version, next(self._order), deadline)
        return self._assign()

    def failed(self, puller: str) -> list[Expire | Assign]:
        """A pull broke off although its source may live: another source is tried, and when all failed, the pull ends."""
        pull = self._pulls.get(puller)
        if pull is None or pull.source is None:
            return []
        self._serving.pop(pull.source, None)
        pull.refused |= {pull.source}
        pull.source = None
        if self._holders(pull.version) - {puller} <= pull.refused:
            self._end(puller)
            why = f"version {pull.version} for {puller} could be pulled from none of {', '.join(sorted(pull.refused))}"
            return [Expire(puller, pull.version, VersionNotYet(why)), *self._assign()]
        return [*self._assign()]

    def expire(self, now: float) -> list[Expire | Assign]:
        """End the pulls whose deadline has passed; their sources serve the next ones."""
        late = [puller for puller, pull in self._pulls.items() if pull.deadline <= now]
        ended = [self._expired(puller) for puller in sorted(late, key=lambda puller: self._pulls[puller].order)]
        return [*ended, *self._assign()] if ended else []

    def _expired(self, puller: str) -> Expire:
        pull = self._pulls[puller]
        holders = sorted(self._holders(pull.version))
        why = f"was being pulled from {pull.source}" if pull.source else f"waited for one of {', '.join(holders)}"
        if not holders:
            why = "is held by no living source"
        self._end(puller)
        return Expire(puller, pull.version, VersionNotYet(f"version {pull.version} for {puller} {why} at its deadline"))

    def _end(self, puller: str) -> None:
        pull = self._pulls.pop(puller, None)
        if pull is not None and pull.source is not None:
            del self._serving[pull.source]

    def _assign(self) -> list[Assign]:
        made = []
        for puller in self.waiting:
            pull = self._pulls[puller]
            if pull.refused and self._holders(pull.version) - {puller} <= pull.refused:
                pull.refused = frozenset()  # the last of the others is gone: those that failed are tried again
            source = self._source_for(puller)
            if source is not None:
                pull.source = source
                self._serving[source] = puller
                made.append(Assign(puller, self._pulls[puller].version, source))
        return made

    def _source_for(self, puller: str) -> str | None:
        pull, site = self._pulls[puller], self._site(puller)
        trusted = self._holders(pull.version) - pull.refused - {puller}
        near = [node for node in trusted if self._site(node) == site]
        if not near and self._crosses(pull.version, site):
            return None
        free = [node for node in near or trusted if node not in self._serving]  # a busy neighbour is waited for
        return min(free, default=None)

    def _holders(self, version: int) -> set[str]:
        return {node for node, versions in self._holdings.items() if version in versions}

    def _crosses(self, version: int, site: str) -> bool:
        """Whether a relay of that site now pulls the version from another site."""
        return any(
            pull.version == version
            and pull.source is not None
            and self._site(puller) == site
            and self._site(pull.source) != site
            for puller, pull in self._pulls.items()
        )

    def _site(self, node: str) -> str:
        return self._sites.get(node, "")
