"""Checks of policies' answers, and the message for a policy that raises: a line with plugin, method and answer."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

from tailrace.contracts import AdmissionGate, BatchingSource
from tailrace.pipeline.errors import PluginAnswerError
from tailrace.pipeline.spec import AXES, PipelineSpec

_Answer = TypeVar("_Answer")


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
