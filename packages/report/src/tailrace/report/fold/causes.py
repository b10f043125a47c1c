"""Why a member had nothing to do, as far as the log tells. Pure.

A cause names no version and no number: the report adds up the time of each.
"""

from __future__ import annotations

from itertools import islice

from tailrace.contracts import Health
from tailrace.controller.members import RELAY
from tailrace.report.fold.history import History
from tailrace.report.fold.states import PastMember, Stage

UNPUBLISHED = "no weights published yet"
NO_RELAY = "no relay to pull from"
ADMITTED = "every prompt of the run is admitted"
BUFFER_FULL = "buffer full: the trainer is behind"
POOL_EMPTY = "the pool is empty: the trainer is behind"
ELSEWHERE = "the pool is empty: what is left runs on other replicas"
SCORING = "every response is generated, and scores are awaited"
REFUSED = "admission: nothing may start before the trainer is further"
HELD_BACK = "held back: no replica gains enough"
BEHIND = "behind the newest weights, which would bring it no work yet"
IN_ENVIRONMENTS = "its trajectories are in environments"
NOT_YET = "behind the newest weights, and not told to pull them yet"
OTHERS = "waiting for the other replicas"  # what that was, once all pull together

FIRST_BATCH = "the first batch is being generated"
NO_BATCH = "no complete batch"
NEXT_NOT_STARTED = "the batch is complete, and held until the next one has started whole"
HELD_FOR_LATER = "enough groups are complete, but the oldest batch lacks one"
DONE = "all steps done: last evaluations and checkpoint"


def idle_cause(replica: PastMember, history: History) -> str:
    """Why a replica that is up, pulls nothing and holds nothing is idle."""
    mixes = history.mixes_versions
    if history.published < 0:
        return UNPUBLISHED
    if replica.version is None:
        relays = any(key[0] == RELAY and member.health is Health.UP for key, member in history.members.items())
        return NOT_YET if relays else NO_RELAY
    if replica.id in history.away.values():
        return IN_ENVIRONMENTS
    if _only_scores(history):
        return SCORING
    open_ = history.generating + history.buffered
    if _left(history) <= 0 and not (mixes and history.pending):
        return ADMITTED
    if open_ >= history.open_limit and not history.pending:
        if history.room is None:
            return BUFFER_FULL
        return POOL_EMPTY if history.making is not None else ELSEWHERE
    if not mixes:
        return NOT_YET if replica.version < history.published else REFUSED
    if any(known.version is None or known.version <= replica.version for known in history.pending.values()):
        return HELD_BACK
    if replica.version < history.published:
        return BEHIND
    return REFUSED if replica.version < history.version or history.bound is None else HELD_BACK


def waiting_cause(history: History) -> str:
    """Why a trainer that is up has no batch."""
    if history.step >= history.spec.steps:
        return DONE
    if _held(history):
        return NEXT_NOT_STARTED
    if _only_scores(history):
        return SCORING
    if history.step == 0:
        return FIRST_BATCH
    return HELD_FOR_LATER if history.buffered >= history.spec.batch_groups else NO_BATCH


def _held(history: History) -> bool:
    """Whether a step waits for groups to start: batches start one after the other, and its own is complete."""
    if not history.batchwise or _left(history) <= 0:
        return False
    size = history.spec.batch_groups
    open_ = [group for group in history.groups.values() if group.stage is not Stage.TRAINED]
    complete = all(group.stage is not Stage.GENERATING for group in islice(open_, size))
    return size <= len(open_) < history.open_limit and complete


def _left(history: History) -> int:
    """Groups of the run that have not started."""
    spec = history.spec
    return spec.steps * spec.batch_groups + spec.batching.surplus_groups - history.started + history.dropped


def _only_scores(history: History) -> bool:
    """Whether groups are open, of which no response is being generated or about to be."""
    under_way = history.pending or history.away or any(member.holds for member in history.members.values())
    return history.generating > 0 and not under_way
