"""What policies may answer, and whose fault it is when one raises: a line that names plugin, method and answer."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any

from tailrace.pipeline.errors import PluginAnswerError


def answered(axis: str, policy: object, method: str, answer: object, expected: str) -> PluginAnswerError:
    """The error for an answer that the contract forbids."""
    return PluginAnswerError(
        f"{axis} policy {name_of(policy)}: {method} answered {answer!r:.200}, expected {expected}; "
        "the run can be resumed once the policy is mended"
    )


def blame(error: Exception, policies: Mapping[str, object]) -> str | None:
    """The line for an exception that a policy raised; None if it came from elsewhere.

    Args:
        policies: policies, and the objects that they opened, by axis.
    """
    if isinstance(error, PluginAnswerError):
        return str(error)
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        found = frame.f_locals.get("self")
        for axis, policy in policies.items():
            if found is policy:
                return (
                    f"{axis} policy {name_of(policy)}: {frame.f_code.co_name} raised {type(error).__name__}: {error}; "
                    "the run can be resumed once the policy is mended"
                )
    return None


def name_of(policy: Any) -> str:
    """A policy for a person: its class, with the module that it comes from."""
    kind = type(policy)
    return f"{kind.__module__}.{kind.__qualname__}"
