"""Commands for weight versions: publish, pull and checkpoint.

    Stepped, or the trainer or a relay comes up ──► Publish ──Published──► replicas may pull ──Pulled──► they serve it
                                               └──► Checkpoint ──Durable──► behind a fence: Reveal

Invariant: a replica pulls what was published, and behind a fence nothing is published whose checkpoint is not durable.
"""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.controller.members import RELAY
from tailrace.controller.state import State

PULL_ATTEMPTS = 4
PULL_PAUSE_S = 0.5
"""Pause before a failed pull is tried again; it doubles with each further failure, 7.5 s in all."""

_LOST = (c.Health.DOWN, c.Health.STARTING)


class Weights:
    """Publishes and saves the trainer's weights, and follows the replicas' pulls.

    Behind a fence a version is handed over sealed, and revealed once its checkpoint is durable (RobustRL publishes before,
    sections 2.3 and 5.1: a machine that is lost in between leaves replicas newer than the trainer).
    """

    def __init__(self, state: State) -> None:
        self._state, self._ledger, self._fleet, self._members = state, state.ledger, state.fleet, state.members
        self._trainer, self._discards, self._outbox = state.trainer, state.discards, state.outbox

    def publish(self) -> None:
        """Publish the trainer's weights to the relays that are up, also if they were published before.

        Before the first relay is up, nothing is published, and training waits.
        """
        trainer, relays = self._trainer, self._members.relays()
        if trainer.up and (relays or trainer.staged):
            version, sealed = trainer.hands_over(self._state.spec.fence)
            self._outbox.send(c.Publish, version=version, relays=relays, sites=self._members.sites(), sealed=sealed)

    def checkpoint(self, *, full: bool = True) -> None:
        """Save the trainer's state, or its weights alone."""
        keep = self._trainer.saves(self._ledger.versions_needed())
        self._outbox.send(c.Checkpoint, version=self._trainer.version, keep=keep, full=full)

    def was_saved(self, version: int) -> None:
        """Reveal a version that was handed over sealed."""
        if self._state.spec.fence and self._trainer.reveals(version):
            self._outbox.send(c.Reveal, version=version)

    def was_published(self, event: c.Published) -> None:
        """Note that a version may be pulled; this counts as work of the relays that are up."""
        self._trainer.was_published(event.version)
        for relay in self._members.of(RELAY):
            if relay.health is c.Health.UP:
                relay.worked()

    def pulled(self, event: c.Pulled) -> None:
        """Note that a replica serves a version. One that was lost since has it no more."""
        replica = self._fleet.replicas[event.replica]
        if replica.member.health in _LOST:
            return
        self._trainer.expect_made("Pulled", event.version)
        replica.version, replica.pulling, replica.failed_pulls, replica.differed = event.version, None, 0, False
        replica.emptied += 1  # an engine drops its prefix cache with the weights
        replica.offered = event.version if event.source else None  # what came from its checkpoint, it cannot pass on
        replica.released = False

    def pull_failed(self, event: c.PullFailed) -> None:
        """Handle a failed pull: the newest version is tried again; an older one is gone, which is no replica's failure.

        It is not gone while another replica serves it or may yet get it.
        """
        replica = self._fleet.replicas[event.replica]
        if replica.member.health in _LOST:
            return
        replica.pulling, replica.version = None, None
        if event.version != self._trainer.published:
            if not any(event.version in (other.version, other.pulling) for other in self._fleet.up()):
                self._version_gone(event.version)
            return
        replica.failed_pulls += 1
        if replica.failed_pulls > PULL_ATTEMPTS:
            self._state.fail(
                f"replica {replica.id} failed {replica.failed_pulls} times to pull version {event.version}: {event.reason}"
            )
        else:  # its relay may be dead without a Down yet
            replica.pulls_from_s = self._state.now + PULL_PAUSE_S * 2 ** (replica.failed_pulls - 1)

    def _version_gone(self, version: int) -> None:
        """Start trajectories again that only the weights of a lost version could continue, and drop them from the store.

        The store may have such a trajectory complete, if its end was never reported. A replica that began it would then be
        given it as complete, and it would count for that replica's version.
        """
        lost = self._ledger.version_lost(version)
        if lost:
            self._discards.begin_anew(lost, c.Reason(c.Why.VERSION_GONE, numbers={"version": version}))
