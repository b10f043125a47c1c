"""The verifier ``math``: finds the answer of a response and compares it with the reference, cheapest means first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tailrace.reward.errors import ScoringError
from tailrace.reward.extraction import boxed, boxes, last_number, tagged
from tailrace.reward.turns import said
from tailrace.reward.verifiers.math import expressions, words
from tailrace.reward.verifiers.math.magnitude import flat
from tailrace.reward.verifiers.math.notation import plain
from tailrace.reward.verifiers.math.quantities import endless, quantity, rounds_to, value
from tailrace.reward.verifiers.math.structure import Shape, chain, named, shape
from tailrace.reward.verifiers.protocol import with_cpu_budget

CPU_BUDGET_S = 2.0
"""CPU seconds for one response (RollPacker, section 4.3); most take a hundredth."""
_MAX_ANSWER = 1000  # letters; a longer answer is right only if it is the reference's text
_MAX_PARTS = 64
_BEGUN = re.compile(r"<answer>|\\boxed\{")
_WITHIN = re.compile(r"[\^_{\\/*+]\s*$")
_FOLLOWED = re.compile(r"\s*[}^_*/+!]")
_RELATION = re.compile(r"(?<!\\)[=<>]|\\(?:le|ge|ne|lt|gt|in)(?![a-zA-Z])")
_REGION = re.compile(r"\\(?:cup|cap|setminus|mathbb)(?![a-zA-Z])|[<>]|\\(?:le|ge|ne)(?![a-zA-Z])")


@with_cpu_budget(CPU_BUDGET_S)
def math(response: str, answer: str, metadata: Mapping[str, Any]) -> float:
    r"""1.0 if the response's answer means what `answer` means, else 0.0.

    The answer is the content of the answer tag, else of the last ``\boxed{}``. Without either it is the last number, and only
    a reference that is a number is compared with it.

    Raises:
        ScoringError: `answer` is empty.
    """
    reference = plain(_unboxed(answer))
    if not reference:
        raise ScoringError(f"found the reference answer {answer[:60]!r}, expected one that is not empty")
    response = said(response, metadata)
    found = tagged(response)
    found = boxed(response) if found is None else _unboxed(found)
    if found is None:
        found = _unmarked(response) if value(quantity(reference)[0]) is not None else None
    if found is None:
        return 0.0
    if len(found) > _MAX_ANSWER or not flat(found) or not flat(reference):
        return float(found.split() == answer.split())
    return float(same(reference, plain(found)))


def _unmarked(response: str) -> str | None:
    """The last number of a response that neither begins an answer nor has the number as a part of a formula."""
    number = None if _BEGUN.search(response) else last_number(response)
    if number is None:
        return None
    at = response.rindex(number)
    return None if _WITHIN.search(response[:at]) or _FOLLOWED.match(response[at + len(number) :]) else number


def same(reference: str, response: str) -> bool:
    """Whether two answers in plain LaTeX mean the same. Not symmetric: the reference says what is asked for."""
    if reference == response:
        return True
    if not response:
        return False
    if words.is_choice(reference):
        return words.choice(reference) == words.choice(response)
    response = _exact_side(response)
    asked, said = shape(reference), shape(response)
    name, body = named(reference) if asked.kind == "one" else ("", reference)
    given, rest = named(response) if said.kind == "one" else ("", response)
    if name and given and name != given:
        return expressions.equal_relations(reference, response)
    if name or given:
        return _same_named(name, body, rest if given else response) or (
            bool(name) and not given and expressions.equal_relations(reference, response)
        )
    return _same_shape(asked, said, reference, response)


def _same_named(name: str, body: str, rest: str) -> bool:
    """Compare what is said of a name: the members of ``x = 2 + 3 = 5`` must all be equal."""
    *earlier, last = chain(rest)
    if not all(same(member, last) for member in earlier):
        return False
    return same(chain(body)[-1] if name else body, last)


def _same_shape(reference: Shape, response: Shape, whole: str, given: str) -> bool:
    if max(len(reference.parts), len(response.parts)) > _MAX_PARTS:
        return False
    kinds = reference.kind, response.kind
    if kinds == ("one", "one"):
        return _same_one(reference.parts[0], response.parts[0])
    if kinds == ("ordered", "ordered"):
        return reference.brackets == response.brackets and _in_order(reference.parts, response.parts)
    if "ordered" in kinds and "list" in kinds:
        ordered = reference if kinds[0] == "ordered" else response
        return ordered.brackets == "()" and _in_order(reference.parts, response.parts)
    if {"one", "ordered"} == set(kinds):
        return _is_region(whole, reference) and _is_region(given, response) and expressions.equal_sets(whole, given)
    if "ordered" in kinds:
        return False
    if kinds == ("list", "list"):
        names = [named(part)[0] for part in reference.parts]
        if len(set(names)) == len(names) and all(names) and not any(named(part)[0] for part in response.parts):
            return _in_order(reference.parts, response.parts)  # x = 1, y = 2 is not 2, 1
        return _in_any_order(_with_name(reference.parts), _with_name(response.parts))
    return _in_any_order(_distinct(reference.parts), _distinct(response.parts))


def _same_one(reference: str, response: str) -> bool:
    """Compare two answers that are no lists: a number with its unit, words, a relation or an expression."""
    if reference == response:
        return True
    number, unit = quantity(reference)
    given, given_unit = quantity(response)
    if unit and given_unit and unit != given_unit:
        return False
    if unit or given_unit:
        return same(number, given)
    if words.is_text(reference) or words.is_text(response):
        return words.same_text(reference, response)
    exact, said = value(reference), value(response)
    if exact is not None and said is not None:
        return _same_number(reference, response, exact, said)
    if _REGION.search(reference) or _REGION.search(response):
        return expressions.equal_relations(reference, response) or (
            _REGION.search(reference) is not None
            and _REGION.search(response) is not None
            and expressions.equal_sets(reference, response)
        )
    if len(chain(reference)) > 1 or len(chain(response)) > 1:
        return _same_equation(reference, response)
    return expressions.equal(_fraction(reference), _fraction(response)) or _rounded(reference, response)


def _same_number(reference: str, response: str, exact: Fraction, said: Fraction) -> bool:
    if exact == said:
        return True
    if reference.endswith("%") != response.endswith("%"):
        # "What percentage?": 50 and 50 % are the same answer. 1 and 1 %, or 0.5 and 0.5 %, are not.
        bare = [number * (100 if text.endswith("%") else 1) for text, number in ((reference, exact), (response, said))]
        if bare[0] == bare[1] and bare[0].denominator == 1 and abs(bare[0]) > 1:
            return True
    return (endless(exact) and rounds_to(exact, response)) or (endless(said) and rounds_to(said, reference))


def _same_equation(reference: str, response: str) -> bool:
    asked, members = chain(reference), chain(response)
    if len(asked) == len(members) == 2:
        return expressions.equal_relations(reference, response)
    if len(asked) > 1:
        return False
    # The reference is a value and the response shows how it comes about: 2 + 3 = 5. Each member must be right.
    return all(same(reference, member) for member in members)


def _rounded(reference: str, response: str) -> bool:
    """Whether one side is a decimal of six significant digits or more, and the other an exact value that rounds to it."""
    for decimal, other in ((response, reference), (reference, response)):
        if re.fullmatch(r"-?\d*\.\d+", decimal) and value(other) is None:
            found = expressions.decimal_value(other, len(decimal.partition(".")[2]) + 10)
            return found is not None and rounds_to(Fraction(found), decimal)
    return False


def _in_order(reference: tuple[str, ...], response: tuple[str, ...]) -> bool:
    return len(reference) == len(response) and all(map(same, reference, response))


def _in_any_order(reference: tuple[str, ...], response: tuple[str, ...]) -> bool:
    if len(reference) != len(response):
        return False
    left = list(response)
    for part in reference:
        match = next((other for other in left if same(part, other)), None)
        if match is None:
            return False
        left.remove(match)
    return True


def _distinct(parts: tuple[str, ...]) -> tuple[str, ...]:
    kept: list[str] = []
    for part in parts:
        if not any(same(part, other) for other in kept):
            kept.append(part)
    return tuple(kept)


def _with_name(parts: tuple[str, ...]) -> tuple[str, ...]:
    """``x = 1, 2`` says ``x = 1, x = 2``."""
    name, _ = named(parts[0])
    if not name or any(named(part)[0] for part in parts[1:]):
        return parts
    return (parts[0], *(f"{name} = {part}" for part in parts[1:]))


def _is_region(text: str, found: Shape) -> bool:
    return (found.kind == "ordered" and len(found.parts) == 2) or _REGION.search(text) is not None


def _exact_side(text: str) -> str:
    r"""The exact side of ``\sqrt{2} \approx 1.41``, or the number of ``x \approx 1.41``."""
    before, sign, after = text.partition(r"\approx")
    if not sign:
        return text
    return after.strip() if not before.strip() or named(f"{before.strip()} = 0")[0] else before.strip()


def _fraction(text: str) -> str:
    return text[:-1] + r" \cdot \frac{1}{100}" if text.endswith("%") else text


def _unboxed(text: str) -> str:
    """The content of the boxes in an answer, as a list if there are several, or the answer itself."""
    found = dict.fromkeys(boxes(text))
    return ", ".join(found) if found else text
