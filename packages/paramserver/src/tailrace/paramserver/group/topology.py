"""The broadcast forest: which relay sends to which, as a pure function of who lives.

    trainer rank 0 ──► a ──► b ──► c            home site: one chain for each data-parallel root (StreamRL, section 6)
                       └────────────► x ──► y   another site: one edge into it, to a designated receiver
    trainer rank 1 ──► d ──► e

With one root and one site this is Laminar's chain (section 4.2). A repair keeps every edge that it can: the relay
before a dead one goes on with the relay after it (Laminar, section 4.3), so one death changes the next hops of three
relays at most, whatever the number of relays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

#: How far a relay is, larger is further: the stamp of its newest complete version, then the newest version that is
#: arriving and the chunks of that one.
Progress = tuple[int, int, int]
NOTHING: Progress = (-1, -1, 0)


def elect(candidates: Iterable[str], progress: Mapping[str, Progress]) -> str:
    """The new head of a chain: the newest complete version, then the most chunks of one that arrives, then the name.

    Raises:
        ValueError: there is no candidate.
    """
    return min(candidates, key=lambda name: (*(-value for value in progress.get(name, NOTHING)), name))


Chain = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Forest:
    """The edges of a group: which relay sends to which.

    Args:
        home: site of the trees' relays, the trainer's as long as a relay lives there. At another site there is one tree:
            only root 0 publishes across.
        trees: each root's chain at the home site, the master first; empty if there are too few relays.
        remote: each other site's chain, the designated receiver first. Tree 0's master feeds them.
    """

    home: str
    trees: tuple[Chain, ...]
    remote: Mapping[str, Chain]

    @property
    def masters(self) -> tuple[str | None, ...]:
        """The relay that each root publishes to."""
        return tuple(tree[0] if tree else None for tree in self.trees)

    @property
    def members(self) -> frozenset[str]:
        """Every relay in it."""
        return frozenset(name for chain in (*self.trees, *self.remote.values()) for name in chain)

    def next_hops(self) -> dict[str, tuple[str, ...]]:
        """The receivers of each relay: its successor, then (for the first master only) the remote receivers."""
        hops: dict[str, tuple[str, ...]] = {}
        for chain in (*self.trees, *self.remote.values()):
            hops |= {name: (chain[index + 1],) if index + 1 < len(chain) else () for index, name in enumerate(chain)}
        if self.trees[0]:
            hops[self.trees[0][0]] += tuple(chain[0] for _, chain in sorted(self.remote.items()))
        return hops


def plan(
    sites: Mapping[str, str],
    living: Sequence[str],
    progress: Mapping[str, Progress],
    *,
    home: str,
    roots: int = 1,
    before: Forest | None = None,
) -> Forest:
    """The forest among the living.

    Args:
        sites: the site of each relay.
        living: the relays to reach, in the order in which newcomers are appended.
        progress: how far each is; decides which relay heads a chain whose head died.
        home: the trainer's site.
        roots: data-parallel ranks that publish.
        before: the forest to repair; None plans from nothing, in the order of `living`, but for the heads.

    Raises:
        ValueError: no root, a relay is named twice or without a site.
    """
    if roots < 1 or len(set(living)) != len(living) or not set(living) <= sites.keys():
        raise ValueError(f"found {roots} roots and the relays {list(living)}, expected a root, and each relay once")
    alive, newcomers = set(living), [name for name in living if before is None or name not in before.members]
    trees: list[list[str]] = [[] for _ in range(roots)]
    remote: dict[str, list[str]] = {}
    if before is not None:
        for index, tree in enumerate(before.trees[:roots]):
            trees[index] = _without_dead(tree, alive, progress)
        remote = {site: _without_dead(chain, alive, progress) for site, chain in before.remote.items()}
    site = _home(sites, living, progress, home, before)
    if before is not None and site != before.home:
        _move_home(trees, remote, before.home, site)
    open_trees = trees if site == home else trees[:1]
    for name in newcomers:
        if sites[name] == site:
            min(open_trees, key=len).append(name)
        else:
            remote.setdefault(sites[name], []).append(name)
    if before is None:
        for chain in (*trees, *remote.values()):
            _head_first(chain, progress)
    _fill_empty(open_trees)
    kept = {name: tuple(chain) for name, chain in sorted(remote.items()) if chain}
    return Forest(site, tuple(tuple(tree) for tree in trees), kept)


def _home(
    sites: Mapping[str, str], living: Sequence[str], progress: Mapping[str, Progress], home: str, before: Forest | None
) -> str:
    """The trainer's site while a relay lives there; else one that already serves; else that of the relay ahead."""
    alive = {sites[name] for name in living}
    if home in alive or not alive:
        return home
    if before is not None and before.home in alive:
        return before.home
    return sites[elect(living, progress)]


def _move_home(trees: list[list[str]], remote: dict[str, list[str]], old: str, new: str) -> None:
    """The trees stand at another site from now on: those who stood in them become one remote chain."""
    left = [name for tree in trees for name in tree]
    for tree in trees:
        tree.clear()
    trees[0].extend(remote.pop(new, []))
    if left:
        remote[old] = left


def _without_dead(chain: Sequence[str], alive: set[str], progress: Mapping[str, Progress]) -> list[str]:
    """The chain among the living; a dead head is followed by the one who is furthest ahead."""
    kept = [name for name in chain if name in alive]
    if kept and kept[0] != chain[0]:
        head = elect(kept, progress)
        kept.remove(head)
        kept.insert(0, head)
    return kept


def _head_first(chain: list[str], progress: Mapping[str, Progress]) -> None:
    """Move the relay with the most progress to the head of the chain; of equals, the one named first."""
    if chain:
        best = max(progress.get(name, NOTHING) for name in chain)
        head = next(name for name in chain if progress.get(name, NOTHING) == best)
        chain.remove(head)
        chain.insert(0, head)


def _fill_empty(trees: list[list[str]]) -> None:
    """A root that lost its whole tree takes the last relay of the longest one."""
    while not all(trees):
        longest = max(trees, key=len)
        if len(longest) < 2:
            break
        next(tree for tree in trees if not tree).append(longest.pop())
    if not trees[0] and any(trees):  # root 0 feeds the other sites, so it goes without a master last
        trees[0].append(next(tree for tree in trees if tree).pop())
