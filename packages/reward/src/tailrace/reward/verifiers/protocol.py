"""The protocol of a verifier, what it may return, and loading one by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, NotRequired, Protocol, TypedDict, TypeVar, cast

from tailrace.contracts.plugins import load, names
from tailrace.reward.errors import SignatureError, VerdictError

_KEYS = ("reward", "correct")
_MOST = 1e30  # of a reward: advantages and errors are made of squares, and trained on in 32 bits


class Verdict(TypedDict):
    """A reward, and whether the answer is right. A dictionary with these keys is one.

    Without `correct`, or with None, nothing is said of that: a reward of 1 then counts as right and one of 0 as wrong, and
    of rewards between or beyond no accuracy is known.
    """

    reward: float
    correct: NotRequired[bool | None]


def read_verdict(found: Any) -> tuple[float, bool | None]:
    """The reward that a verifier returned, and whether it says that the answer is right (None if it does not say).

    Raises:
        VerdictError: it returned something else; a reward is a finite number, of 1e30 at most.
    """
    found = _plain(found)
    if isinstance(found, bool):
        return float(found), found
    correct = None
    if isinstance(found, Mapping):
        unknown = [key for key in found if key not in _KEYS]
        if unknown or "reward" not in found:
            keys = ", ".join(map(_shown, found)) or "none"
            raise VerdictError(f"found an object with the keys {keys}, expected 'reward' and, if it likes, 'correct'")
        found, correct = _plain(found["reward"]), _plain(found.get("correct"))
        if not isinstance(correct, bool | None):
            raise VerdictError(f"found 'correct' = {_shown(correct)}, expected true, false or None")
    try:
        reward = float(found)
    except (TypeError, ValueError):
        raise VerdictError(
            f"found {_shown(found)}, expected a number, true or false, or an object with 'reward' and 'correct'"
        ) from None
    except OverflowError:
        raise VerdictError("found a reward beyond the largest float, expected a finite number") from None
    if not abs(reward) <= _MOST:  # neither is one that is no number
        raise VerdictError(f"found the reward {reward}, expected a finite number, of {_MOST:g} at most")
    return reward, correct


def _plain(found: Any) -> Any:
    """The Python value of a scalar or a single element of numpy, torch or the like; anything else as it is."""
    item = None if isinstance(found, Mapping) else getattr(found, "item", None)
    if not callable(item):
        return found
    try:
        return item()
    except Exception:  # an array of several elements, or another kind of thing with this method
        return found


def _shown(found: Any) -> str:
    try:
        return f"{found!r:.60}"
    except Exception:  # an object may refuse to be shown, as an integer of 5,000 digits does
        return f"an object of the type {type(found).__name__}"


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
                such as ``"last"``, the text of the last (see `tailrace.reward.items`).
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


# What other frameworks call the arguments of their reward functions, by what they mean.
_RESPONSE = frozenset(
    """response completion output prediction pred predicted generated generation model_output solution_str predict_str
    response_text response_str completion_text student""".split()  # noqa: SIM905 (thirty lines otherwise)
)
_ANSWER = frozenset(
    """ground_truth groundtruth gt gold gold_answer reference reference_answer target label expected
    correct_answer""".split()  # noqa: SIM905 (eleven lines otherwise)
)
_ROWS = frozenset(("task", "args", "state", "index", "input", "inputs"))
_OTHER = frozenset(
    """data_source prompt prompts query queries question input_text messages conversation
    completions responses outputs predictions labels answers solutions references ground_truths targets
    """.split()  # noqa: SIM905 (twenty lines otherwise)
)
_METADATA = frozenset(("metadata", "extra_info", "info", "meta", "extra", "extras", "row"))
_UNLIKE = (
    _ANSWER | _METADATA | _OTHER | _ROWS,
    _RESPONSE | _METADATA | _OTHER | _ROWS,
    _RESPONSE | _ANSWER | _OTHER | {"answer"},
)


def check_signature(verifier: Callable[..., Any]) -> None:
    """Check that a function can be called with a response, an answer and metadata, in this order.

    Positions decide what an argument is, so parameters of other names are as good, such as ``(text, gold, info)``. Names that
    say another order are refused: the response would be taken for something else, and nobody would notice.

    Raises:
        SignatureError: it takes other arguments, or it is asynchronous.
    """
    try:
        signature = inspect.signature(verifier)
    except (TypeError, ValueError):  # a function of C without one
        return
    inner = inspect.unwrap(verifier)
    called = inner if inspect.isroutine(inner) else type(inner).__call__
    if inspect.iscoroutinefunction(called):
        raise _refused(verifier, signature, "a function that is not asynchronous")
    try:
        signature.bind("", "", {})
    except TypeError:
        raise _refused(verifier, signature) from None
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    positional = [one for one in signature.parameters.values() if one.kind in kinds][:3]
    for parameter, unlike in zip(positional, _UNLIKE, strict=False):
        if parameter.name.lower() in unlike:
            raise _refused(verifier, signature)
    if len(positional) == 3 and isinstance(positional[2].default, str | int | float):
        raise _refused(verifier, signature)  # an option, which would be given the metadata


def _refused(verifier: object, signature: inspect.Signature, expected: str = "") -> SignatureError:
    name = getattr(verifier, "__name__", type(verifier).__name__)
    parameters = ", ".join(str(one.replace(annotation=Parameter.empty)) for one in signature.parameters.values())
    return SignatureError(
        f"found {name}({parameters}), expected {expected or 'verify(response, answer, metadata)'}: the response's text, the "
        "reference answer and the row's further columns, in this order; wrap a function of another framework in one"
    )
