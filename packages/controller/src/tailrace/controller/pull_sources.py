"""Who a replica pulls a version from: the relays or, where replicas are peers, whoever is free (RobustRL, section 5.2.1).

    every holder of the version: replicas that offer it, relays ──► those of the replica's site ──► those that serve nobody

Among peers a source has one puller at a time, so that pulls share no link; who has pulled is a source for the next ones, so
that n replicas have a version after about log2(n) turns. Into a site where nobody holds it only one pulls at a time; the others
of that site wait for it (StreamRL, section 6).
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.contracts import Health
from tailrace.controller.fleet import Replicas, ReplicaState
from tailrace.controller.members import LEAVING, Members


@dataclass(frozen=True, slots=True)
class Sources:
    """Addresses from which a version can be pulled, best first.

    Args:
        free: those that may be pulled from now.
        busy: those that serve others, to go on with if the free ones break off.
    """

    free: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether anybody may have the version."""
        return bool(self.free or self.busy)


def sources(members: Members, fleet: Replicas, replica: ReplicaState, version: int, *, peers: bool) -> Sources:
    """The sources of a replica's pull. A relay that is up counts as one that has the version.

    Args:
        replica: it lacks the version.
        version: the version's number.
        peers: whether replicas offer what they have pulled.
    """
    relays = members.relays_for(replica.id)
    if not peers:
        return Sources(tuple(relay.address for relay in relays))
    here, others = replica.member, [other for other in fleet.replicas.values() if other is not replica]
    up = [other for other in others if other.member.health is Health.UP]
    offering = [other.member for other in up if other.offered == version]
    turn = list(fleet.replicas).index(replica.id) % max(1, len(offering))  # pullers spread over those that offer it
    holders = [*offering[turn:], *offering[:turn], *relays]
    holders.sort(key=lambda holder: holder.machine != here.machine)
    near = [holder for holder in holders if holder.site == here.site]
    there = [other for other in others if other.member.health is Health.UP or other.member.health in LEAVING]
    told = [other for other in there if other.pulling is not None and other.pull_waits is None]
    crossing = not near and any(other.pulling == version and other.member.site == here.site for other in told)
    taken = {other.source for other in told}
    found = [holder.address for holder in near or holders]
    free = tuple(address for address in found if address not in taken and not crossing)
    return Sources(free, tuple(address for address in found if address not in free))
