"""Checks of policies' answers, and the message for a policy that raises: a line with plugin, method and answer.

Plans of sync and relocation policies are checked whole, before any of it is carried out.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from tailrace.contracts import (
    AdmissionGate,
    BatchingSource,
    Cycle,
    Evict,
    Move,
    RelocationPolicy,
    ReplicaView,
    Sync,
    SyncPolicy,
)
from tailrace.controller.errors import PluginAnswerError
from tailrace.controller.spec import AXES, PipelineSpec

_Answer = TypeVar("_Answer")
_PULLS = "a replica that is behind, once; none that pulls or is pinned, and none with work where versions do not mix"
_MOVE = "two replicas of one version, neither pulling nor pinned, each in one part of the plan"
_EVICT = "trajectories that run on a replica which neither pulls nor is pinned; exact ones if another can continue them"


def answered(axis: str, policy: object, method: str, answer: object, expected: str) -> PluginAnswerError:
    """The error for an answer that a policy's contract forbids."""
    return PluginAnswerError(
        _line(f"{axis} policy {name_of(policy)}: {method} answered {answer!r:.200}, expected {expected}")
    )


def listed(
    axis: str, policy: object, method: str, answer: Sequence[_Answer], kinds: type | tuple[type, ...]
) -> Sequence[_Answer]:
    """Check that an answer is a sequence of these types, and return it.

    Raises:
        PluginAnswerError: the answer is something else.
    """
    if isinstance(answer, Sequence) and all(isinstance(member, kinds) for member in answer):
        return answer
    names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
    raise answered(axis, policy, method, answer, f"a sequence of {names}")


def chosen(
    axis: str, policy: object, method: str, answer: Sequence[int], offered: Collection[int], count: int | None = None
) -> list[int]:
    """Check that an answer names groups, each once, and return it.

    Args:
        axis: the policy's axis.
        policy: the policy.
        method: the method that answered.
        answer: the answer.
        offered: groups that it may name.
        count: how many it must name; None for any number.

    Raises:
        PluginAnswerError: the answer is something else.
    """
    if isinstance(answer, Sequence) and all(isinstance(group, int) for group in answer):
        groups = set(answer)
        if len(groups) == len(answer) == (len(groups) if count is None else count) and groups.issubset(offered):
            return list(answer)
    many = "different groups" if count is None else f"{count} different groups"
    raise answered(axis, policy, method, answer, f"{many} of {list(offered)!r:.120}")


def pulls(policy: SyncPolicy, cycle: Cycle) -> Sequence[Sync]:
    """The policy's pulls, checked.

    Raises:
        PluginAnswerError: the policy named a replica that must not pull.
    """
    published, mixes = cycle.progress.published, policy.mixes_versions
    may = {
        view.replica
        for view in cycle.replicas
        if view.version != published and not (view.pulling or view.pinned or (view.in_flight and not mixes))
    }
    decisions = listed("sync", policy, "pulls", policy.pulls(cycle), Sync)
    for decision in decisions:
        if decision.replica not in may:
            raise answered("sync", policy, "pulls", decision, _PULLS)
        may.discard(decision.replica)
    return decisions


def relocations(policy: RelocationPolicy, cycle: Cycle) -> Sequence[Move | Evict]:
    """The policy's moves and evictions, checked.

    Raises:
        PluginAnswerError: a move or an eviction could lose trajectories.
    """
    decisions = listed("relocation", policy, "plan", policy.plan(cycle), (Move, Evict))
    free = {view.replica: view for view in cycle.replicas if not (view.pulling or view.pinned)}
    emptied: set[str] = set()
    filled: set[str] = set()
    for decision in decisions:
        if isinstance(decision, Move):
            source, destination = free.get(decision.source), free.get(decision.destination)
            if (
                source is None
                or destination is None
                or source.version != destination.version
                or source.replica in filled | emptied | {destination.replica}
                or destination.replica in emptied
            ):
                raise answered("relocation", policy, "plan", decision, _MOVE)
            emptied.add(source.replica)
            filled.add(destination.replica)
        elif decision.replica in filled | emptied or not _can_leave(decision, free, cycle.replicas):
            raise answered("relocation", policy, "plan", decision, _EVICT)
        else:
            emptied.add(decision.replica)
    return decisions


def _can_leave(eviction: Evict, free: dict[str, ReplicaView], replicas: Sequence[ReplicaView]) -> bool:
    view = free.get(eviction.replica)
    if view is None or not set(eviction.trajectories) <= set(view.trajectories):
        return False
    others = {other.version for other in replicas if other is not view and not other.pulling}
    return all(
        running.version in others for name in eviction.trajectories if (running := view.trajectories[name]).exact
    )


def blame(error: Exception, policies: Mapping[str, object]) -> str | None:
    """The message for an exception that a policy raised; None if another code raised it.

    Args:
        error: the exception.
        policies: policies, and the objects that they opened, by axis.
    """
    if isinstance(error, PluginAnswerError):
        return str(error)
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        found = frame.f_locals.get("self")
        for axis, policy in policies.items():
            if found is policy:
                raised = f"{frame.f_code.co_name} raised {type(error).__name__}: {error}"
                return _line(f"{axis} policy {name_of(policy)}: {raised}")
    return None


def policies_of(spec: PipelineSpec, gate: AdmissionGate, source: BatchingSource) -> dict[str, object]:
    """Policies and the objects that they opened, by axis; an object with several names keeps the first."""
    found = {axis: getattr(spec, axis) for axis in (*AXES, "detection", "sampler", "eviction")}
    found = {axis: policy for axis, policy in found.items() if policy is not None}
    return {**found, "admission gate": gate, "batching source": source}


def _line(text: str) -> str:
    return f"{' '.join(text.split())}; the run can be resumed once the policy is mended"


def name_of(policy: Any) -> str:
    """A policy's name for messages: its module and class."""
    kind = type(policy)
    return f"{kind.__module__}.{kind.__qualname__}"
