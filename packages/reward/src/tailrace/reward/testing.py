"""Contract suite for verifiers: run ``check_verifier(mine, right=..., wrong=..., answer=...)`` on your own."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

from tailrace.reward.errors import SignatureError, VerdictError
from tailrace.reward.verifiers.protocol import Verifier, check_signature, read_verdict

# Responses without a proper answer, as models write them.
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
    """Check the rules of `Verifier` on which a scorer relies.

    Args:
        verifier: the verifier to check.
        right: a response with the right answer.
        wrong: a response with a wrong answer.
        answer: the reference answer.
        metadata: the row's metadata; a verifier gets it as parsed JSON.

    Raises:
        AssertionError: the verifier breaks the contract; the message says how.
    """
    try:
        check_signature(verifier)
    except SignatureError as error:
        raise AssertionError(str(error)) from error
    given = json.loads(json.dumps(dict(metadata or {})))
    before = copy.deepcopy(given)

    def judge(response: str) -> tuple[float, bool | None]:
        try:
            return read_verdict(verifier(response, answer, given))
        except VerdictError as error:
            raise AssertionError(f"the response {response[:40]!r} was judged by no reward: {error}") from error
        except Exception as error:
            raise AssertionError(
                f"the response {response[:40]!r} raised {type(error).__name__}: {error}; a malformed answer must earn a reward"
            ) from error

    (best, is_right), (worst, is_wrong) = judge(right), judge(wrong)
    _expect(best > worst, f"a right response earned {best}, a wrong one {worst}")
    said = (is_right, is_wrong)
    _expect(
        said in ((True, False), (None, None)), f"a right response is 'correct' = {is_right}, a wrong one {is_wrong}"
    )
    for response in (right, wrong, *ODD_RESPONSES):
        reward, correct = judge(response)
        again = judge(response)
        _expect(reward <= best, f"the response {response[:40]!r} earned {reward}, more than the right one's {best}")
        _expect((reward, correct) == again, f"the response {response[:40]!r} earned {reward, correct} and then {again}")
    _expect(given == before, "the verifier changed its metadata")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)
