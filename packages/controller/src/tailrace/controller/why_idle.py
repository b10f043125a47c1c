"""Why a member that is up has nothing to do: asked of the parts that give it nothing. Nothing is decided here."""

from __future__ import annotations

from tailrace import contracts as c
from tailrace.controller.batches import Batches
from tailrace.controller.fleet import ReplicaState
from tailrace.controller.refill import Refill
from tailrace.controller.state import State


def replica_waits(state: State, refill: Refill, replica: ReplicaState) -> c.Reason:
    """Why a replica that is up, pulls nothing and holds nothing is idle."""
    ledger, trainer, gate, published = state.ledger, state.trainer, state.gate, state.trainer.published
    newest = {"version": float(published)}
    if published < 0:
        return c.Reason(c.Why.UNPUBLISHED)
    if replica.version is None:
        return c.Reason(c.Why.NOT_TOLD, numbers=newest) if state.members.relays() else c.Reason(c.Why.NO_RELAY)
    if replica.away:
        return c.Reason(c.Why.IN_ENVIRONMENTS, numbers={"trajectories": float(len(replica.away))})
    if state.only_scores:
        return c.Reason(c.Why.SCORING)
    again = ledger.waiting.level_of  # what has started and waits
    if refill.left <= 0 and not (ledger.mixes_versions and again):
        return c.Reason(c.Why.ADMITTED)
    open_, limit = ledger.started_groups + len(ledger.buffered), refill.open_limit
    if open_ >= limit and not again:
        numbers = {"open": float(open_), "limit": float(limit)}
        if gate.room is None:
            return c.Reason(c.Why.BUFFER_FULL, numbers=numbers)
        return c.Reason(c.Why.ELSEWHERE if trainer.making is None else c.Why.POOL_EMPTY, numbers=numbers)
    own, behind = {"version": float(replica.version)}, replica.version < published
    if not ledger.mixes_versions:
        return c.Reason(c.Why.NOT_TOLD, numbers=newest) if behind else c.Reason(c.Why.NOT_ADMITTED, numbers=own)
    if any(level <= replica.version for level in ledger.waiting.queues):
        return c.Reason(c.Why.HELD_BACK)
    if behind:
        return c.Reason(c.Why.NO_USE, numbers=newest)
    if replica.version < trainer.version or gate.bound is None:
        return c.Reason(c.Why.NOT_ADMITTED, numbers=own)
    return c.Reason(c.Why.HELD_BACK)


def trainer_waits(state: State, batches: Batches) -> c.Reason:
    """Why a trainer that is up has no batch."""
    needed = batches.size
    if needed is None:
        return c.Reason(c.Why.DONE)
    if batches.holds:
        return c.Reason(c.Why.NEXT_NOT_STARTED)
    if state.only_scores:
        return c.Reason(c.Why.SCORING)
    if state.trainer.step == 0:
        return c.Reason(c.Why.FIRST_BATCH)
    buffered = min(needed, len(state.ledger.buffered) + len(state.trainer.accumulated))
    why = c.Why.HELD_FOR_LATER if buffered == needed else c.Why.NO_BATCH
    return c.Reason(why, numbers={"buffered": float(buffered), "needed": float(needed)})
