"""The protocol of a verifier, and loading one by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from tailrace.contracts.plugins import load, names
from tailrace.reward.verifiers.verdict import Verdict

GROUP = "tailrace.verifier"


class Verifier(Protocol):
    """Judges one response. Pure: the result depends only on the arguments, which it does not change.

    A right response earns more than a wrong one, and no response earns more than a right one. An answer that is wrong,
    malformed or missing earns 0.0. An exception means that the verifier itself could not judge (bad metadata, a missing tool).
    It is reported as a failure of the infrastructure and never becomes a reward.
    """

    def __call__(self, response: str, answer: str, metadata: Mapping[str, Any]) -> float | Verdict:
        """The reward of a response, finite. Without partial credit, 1.0 or True is right and 0.0 or False is wrong.

        A graded reward can rise while no more answers are right. So a verifier that grades returns an object that says both:
        ``{"reward": 0.2, "correct": False}``.

        Args:
            response: the decoded response, without the prompt.
            answer: the reference answer.
            metadata: the row's metadata; JSON values only.
        """
        ...


def load_verifier(name: str) -> Verifier:
    """The verifier that is registered under a name in the entry-point group ``tailrace.verifier``.

    Raises:
        PluginError: the name is unknown or registered twice, or its module cannot be imported.
    """
    return cast(Verifier, load(GROUP, name))


def verifier_names() -> list[str]:
    """The names of all installed verifiers."""
    return names(GROUP)
