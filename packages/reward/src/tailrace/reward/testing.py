"""The contract of a verifier, to be run on your own: ``check_verifier(mine, right=..., wrong=..., answer=...)``."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from typing import Any

from tailrace.reward.verifiers.protocol import Verifier

# What models write when they do not write an answer.
ODD_RESPONSES = (
    "",
    " \n\t",
    "<answer>",
    "</answer>",
    "<answer></answer>",
    "<answer><answer>1</answer>",
    "\\boxed{",
    "\\boxed{{}",
    "}{" * 1000,
    "<answer>" * 1000,
    "<answer>nan</answer>",
    "<answer>1e999999999</answer>",
    "<answer>" + "9" * 5000 + "</answer>",
    "<answer>1/0</answer>",
    "<answer>\x00\ud800</answer>",
    "<answer>\N{ARABIC-INDIC DIGIT THREE}</answer>",
)


def check_verifier(
    verifier: Verifier, *, right: str, wrong: str, answer: str, metadata: Mapping[str, Any] | None = None
) -> None:
    """Check what a scorer relies on.

    Args:
        verifier: what is checked.
        right: a response that answers rightly.
        wrong: one that does not.
        answer: the reference answer.
        metadata: the row's metadata; it reaches a verifier as JSON.

    Raises:
        AssertionError: the verifier breaks the contract; the message says how.
    """
    given = json.loads(json.dumps(dict(metadata or {})))
    before = copy.deepcopy(given)
    best, worst = verifier(right, answer, given), verifier(wrong, answer, given)
    _expect(best > worst, f"a right response earned {best}, a wrong one {worst}")
    for response in (right, wrong, *ODD_RESPONSES):
        try:
            reward = verifier(response, answer, given)
            again = verifier(response, answer, given)
        except Exception as error:
            raise AssertionError(
                f"the response {response[:40]!r} raised {type(error).__name__}: {error}; a malformed answer must earn a reward"
            ) from error
        _expect(math.isfinite(reward), f"the response {response[:40]!r} earned {reward}")
        _expect(reward <= best, f"the response {response[:40]!r} earned {reward}, more than the right one's {best}")
        _expect(reward == again, f"the response {response[:40]!r} earned {reward} and then {again}")
    _expect(given == before, "the verifier changed its metadata")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
