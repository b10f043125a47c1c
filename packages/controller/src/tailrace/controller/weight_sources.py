"""Who a replica pulls a version from, and whose weights a trainer that restarts may take (RobustRL, section 5.2.1).

A replica pulls from the relays or, where replicas are peers, from whoever is free:

    every holder of the version: replicas that offer it, relays ──► those of the replica's site ──► those that serve nobody

Among peers a source has one puller at a time, so that pulls share no link; who has pulled is a source for the next ones, so
that n replicas have a version after about log2(n) turns. Into a site where nobody holds it only one pulls at a time; the others
of that site wait for it (StreamRL, section 6).

A trainer takes weights from others if its newest checkpoint is older than what is published:

    checkpoint c ── steps ──► version v, published ──► the trainer is lost
    restart: parameters of v from a relay or a replica; optimizer, schedule and random state of c

What v was trained on is in its weights, so it stays consumed: the trainer comes up with v, and falls back to that. The
optimizer's moments of the steps from c to v are lost, and with parameters kept in more bits than are published, those bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.contracts import Health, HeldWeights
from tailrace.controller.fleet import Replicas, ReplicaState
from tailrace.controller.members import LEAVING, RELAY, Members
from tailrace.controller.state import State


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


def newer_weights(state: State) -> HeldWeights | None:
    """The newest published weights, if they were made of more batches than the checkpoint and somebody may have them.

    Replicas that offer the version come before relays, of which any that is up counts as one that has it; the trainer's site
    comes before others. None if a start of the trainer could not take them before.
    """
    trainer, version = state.trainer, state.trainer.published
    checkpoint = trainer.fallbacks[-1]
    steps = trainer.batches.get(version, 0) - trainer.batches[checkpoint]
    if not state.spec.newer_weights or steps <= 0 or version == trainer.refused or trainer.durable < checkpoint:
        return None
    offering = [replica.member for replica in state.fleet.replicas.values() if replica.offered == version]
    holders = [one for one in (*offering, *state.members.of(RELAY)) if one.health is Health.UP]
    sources = tuple(one.address for one in sorted(holders, key=lambda one: one.site != ""))
    return HeldWeights(version, steps, sources) if sources else None
