"""Why a member had nothing to do, in the order in which the controller would find out. Pure.

A cause names no version and no number: the report adds up the time of each.
"""

from __future__ import annotations

from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.controller.fleet import ReplicaState

UNPUBLISHED = "no weights published yet"
MOVING = "repacked trajectories on their way"
ADMITTED = "every prompt of the run is admitted"
BUFFER_FULL = "buffer full: the trainer is behind"
POOL_EMPTY = "the pool is empty: the trainer is behind"
ELSEWHERE = "the pool is empty: what is left runs on other replicas"
TOO_FAR = "admission: too far ahead of the trainer"
NO_ROOM = "admission: no batch within the bound has room for another group"
UNKNOWN_LOAD = "its load is not known yet"
HELD_BACK = "held back: no replica gains enough"
BEHIND = "behind the newest weights, which would bring it no work yet"
OTHERS = "waiting for the other replicas"

FIRST_BATCH = "the first batch is being generated"
NO_BATCH = "no complete batch"
HELD_FOR_LATER = "enough groups are complete, but the oldest batch lacks one"
DONE = "all steps done: last evaluations and checkpoint"


def idle_cause(replica: ReplicaState, controller: Controller) -> str:
    """Why a replica that is up, pulls nothing and holds nothing is idle."""
    progress, spec, ledger, gate = controller.progress(), controller.spec, controller.ledger, controller.gate
    if progress.published < 0:
        return UNPUBLISHED
    if replica.incoming:
        return MOVING
    wanted = spec.steps * spec.batch_groups + spec.batching.surplus_groups
    none_left = progress.admitted - progress.dropped >= wanted or controller.learner.step >= spec.steps
    if none_left and not (ledger.pooled and spec.sync.mixes_versions):
        return ADMITTED
    if not ledger.pooled and progress.generating + progress.buffered >= controller.coordinator.open_limit:
        if gate.room is None:
            return BUFFER_FULL
        return POOL_EMPTY if controller.learner.making is not None else ELSEWHERE
    if replica.version is not None and spec.sync.mixes_versions:
        return _not_routed(replica, replica.version, controller)
    if replica.version is not None and not gate.tentative().allows(replica.version):
        return _refused(controller)
    return OTHERS


def waiting_cause(controller: Controller) -> str:
    """Why a trainer that is up has no batch."""
    if controller.learner.step >= controller.spec.steps:
        return DONE
    if controller.learner.step == 0:
        return FIRST_BATCH
    held = len(controller.ledger.buffered) >= controller.spec.batch_groups and not controller.gate.ready()
    return HELD_FOR_LATER if held else NO_BATCH


def _not_routed(replica: ReplicaState, version: int, controller: Controller) -> str:
    """Where weights may change under a trajectory: why nothing of the pool goes to a replica that serves a version."""
    levels, admits = controller.ledger.levels, controller.gate.tentative()
    may_run = any(level is not None and level <= version for level in levels)
    if may_run or (None in levels and admits.allows(version)):
        return HELD_BACK if replica.fresh else UNKNOWN_LOAD
    published = controller.learner.published
    if version < published and (None not in levels or admits.allows(published)):
        return BEHIND if replica.fresh else UNKNOWN_LOAD
    return _refused(controller)


def _refused(controller: Controller) -> str:
    return TOO_FAR if controller.gate.bound is None else NO_ROOM
