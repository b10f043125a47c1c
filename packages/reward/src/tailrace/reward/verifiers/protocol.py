"""What a verifier is, and how one is found by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, cast

from tailrace.contracts.plugins import load, names

GROUP = "tailrace.verifier"


class Verifier(Protocol):
    """Judges one response. Pure, and must not depend on anything outside its arguments.

    An answer that is wrong, malformed or missing earns 0.0. An exception says that the verifier itself could not judge
    (bad metadata, a missing tool): it is reported as a failure of the infrastructure and never becomes a reward.
    """

    def __call__(self, response: str, answer: str, metadata: Mapping[str, Any]) -> float:
        """The reward of a response, finite; 1.0 is right and 0.0 is wrong where the task has no partial credit.

        Args:
            response: the decoded response, without the prompt.
            answer: the reference answer.
            metadata: what the data row says beside it, JSON values only.
        """
        ...


def load_verifier(name: str) -> Verifier:
    """The verifier that is registered under a name in the entry-point group ``tailrace.verifier``.

    Raises:
        PluginError: unknown, registered twice, or its module does not import.
    """
    return cast(Verifier, load(GROUP, name))


def verifier_names() -> list[str]:
    """The names of all installed verifiers."""
    return names(GROUP)
