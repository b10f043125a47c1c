"""The protocol of a verifier, and loading one by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, cast

from tailrace.contracts.plugins import load, names
from tailrace.reward.verifiers.verdict import Verdict

GROUP = "tailrace.verifier"


class Verifier(Protocol):
    """Judges one response. Pure: the result depends only on the arguments, which it does not change.

    A right response earns more than a wrong one, and no response earns more than a right one. An answer that is wrong,
    malformed or missing earns 0.0. An exception means that the verifier itself could not judge (bad metadata, a missing tool).
    It is reported as a failure of the infrastructure and never becomes a reward.

    A verifier that computes what a response says may have an attribute `cpu_budget_s`, CPU seconds of its process for one
    response (`with_cpu_budget` sets it). To exceed it is the response's fault: over budget, a reward of 0.0 that is counted.
    Without the attribute, a verifier that does not return is a failure of the infrastructure.
    """

    def __call__(self, response: str, answer: str, metadata: Mapping[str, Any]) -> float | Verdict:
        """The reward of a response, finite. Without partial credit, 1.0 or True is right and 0.0 or False is wrong.

        A graded reward can rise while no more answers are right. So a verifier that grades returns an object that says both:
        ``{"reward": 0.2, "correct": False}``.

        Args:
            response: the decoded response, without the prompt; of several turns, with what the environment answered.
            answer: the reference answer.
            metadata: the row's metadata; JSON values only. Of a response with turns, ``metadata["turns"]`` has more of them,
                such as ``"last"``, the text of the last (see `tailrace.reward.turns`).
        """
        ...


_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_cpu_budget(seconds: float) -> Callable[[_Function], _Function]:
    """Declare a verifier's CPU budget: ``@with_cpu_budget(2.0)``."""

    def declare(verifier: _Function) -> _Function:
        vars(verifier)["cpu_budget_s"] = seconds
        return verifier

    return declare


def cpu_budget_s(verifier: Verifier) -> float | None:
    """The CPU seconds that a verifier grants one response, or None if it declares no budget."""
    found = getattr(verifier, "cpu_budget_s", None)
    return None if found is None else float(found)


def load_verifier(name: str) -> Verifier:
    """The verifier that is registered under a name in the entry-point group ``tailrace.verifier``.

    Raises:
        PluginError: the name is unknown or registered twice, or its module cannot be imported.
    """
    return cast(Verifier, load(GROUP, name))


def verifier_names() -> list[str]:
    """The names of all installed verifiers."""
    return names(GROUP)
