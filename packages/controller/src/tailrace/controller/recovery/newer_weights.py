"""The weights that a restarting trainer may take from others, since its newest checkpoint is older (RobustRL, section 5.2.1).

    checkpoint c ── steps ──► version v, published ──► the trainer is lost
    restart: parameters of v from a relay or a replica; optimizer, schedule and random state of c

What v was trained on is in its weights, so it stays consumed: the trainer comes up with v, and falls back to that. The
optimizer's moments of the steps from c to v are lost, and with parameters kept in more bits than are published, those bits.
"""

from __future__ import annotations

from tailrace.contracts import Health, HeldWeights
from tailrace.controller.members import RELAY
from tailrace.controller.state import State


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
