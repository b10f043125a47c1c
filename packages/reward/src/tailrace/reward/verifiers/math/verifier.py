"""The verifier ``math``: finds the answer of a response and compares it with the reference, cheapest means first."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from tailrace.reward.errors import ScoringError
from tailrace.reward.extraction import boxed, last_number, solution_answer, tagged, unboxed
from tailrace.reward.items import said
from tailrace.reward.verifiers.math import expressions
from tailrace.reward.verifiers.math.expressions import flat
from tailrace.reward.verifiers.math.structure import (
    AnswerShape,
    builder,
    chain,
    is_described,
    is_in_interval,
    named,
    region,
    shape,
)
from tailrace.reward.verifiers.notation import plain
from tailrace.reward.verifiers.protocol import with_cpu_budget
from tailrace.reward.verifiers.quantities import endless, quantity, rounds_to, value

# Answers that are words or the letter of a choice are compared as texts: the library takes words for products.
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_CHOICE = re.compile(r"^(?:(?:option|choice|answer)\s+)?\(?([A-J])\)?(?:[.:)]+\s*(.*))?$", re.I)
_BARE_CHOICE = re.compile(r"^\(?([A-J])\)?\.?$")
_OTHER_CHOICE = re.compile(r"(?<![\w\\])[A-J](?!\w)")
_LONG = re.compile(r"[a-zA-Z]{3,}")
_SHORT = frozenset(("no", "on", "in", "up", "am", "pm", "to", "go", "so", "do", "he", "eh", "we", "is", "si"))
_READ = frozenset(
    """sin cos tan cot sec csc log exp sqrt arcsin arccos arctan sinh cosh
    tanh infinity inf det gcd lcm max min mod""".split()  # noqa: SIM905 (twenty lines otherwise)
)


def unwrapped(text: str) -> str:
    r"""The text with the content of each ``\text{...}`` in its place."""
    return " ".join(_TEXT.sub(r"\1", text).split())


def choice(text: str) -> str:
    """The letter of a choice, such as ``B`` of ``(B)``, ``b.`` or ``B) 12 metres``, or an empty text."""
    found = _CHOICE.match(unwrapped(text))
    if found is None or _OTHER_CHOICE.search(found[2] or ""):
        return ""
    return found[1].upper()


def is_choice(reference: str) -> bool:
    """Whether a reference answer is nothing but the letter of a choice."""
    return _BARE_CHOICE.match(unwrapped(reference)) is not None


def is_text(text: str) -> bool:
    """Whether an answer is words and no expression."""
    if r"\begin" in text:
        return False
    bare = _COMMAND.sub(" ", unwrapped(text))
    found = {word.lower() for word in _LONG.findall(bare)} - _READ
    return bool(found) or bare.strip().lower() in _SHORT


def same_text(reference: str, response: str) -> bool:
    """Whether two answers are the same words, whatever their case and white space."""
    return _folded(reference) == _folded(response)


def _folded(text: str) -> str:
    return " ".join(unwrapped(text).casefold().split())


CPU_BUDGET_S = 2.0
"""CPU seconds for one response (RollPacker, section 4.3); most take a hundredth."""
_MAX_ANSWER = 1000  # letters; a longer answer is right only if it is the reference's text
_MAX_PARTS = 64
_BEGUN = re.compile(r"<answer>|\\(?:boxed|fbox|framebox)\s*\{")
_HEADED = re.compile(r"^[ \t]*####[ \t]*(\S[^\n]*)$", re.M)
_EMPHASIS = re.compile(
    r"(?<![A-Za-z0-9_)*])(\*{1,3})(?=[^\s*])([^*\n]+)(?<=\S)\1(?![A-Za-z0-9_(*])"
    r"|(?<![A-Za-z0-9_])(__|_|`)(?=[^\s_])([^_`\n]+)(?<=\S)\3(?![A-Za-z0-9_])"
)
_STYLE = re.compile(
    r"\\(?:mathbf|mathrm|mathit|boldsymbol|bm|text|textbf|textit|underline)\s*\{\s*([-+$]*[\d.,/]+)\s*\}"
)
_WITHIN = re.compile(r"(?:[\^_{\\/*+×·÷]|\d\s*:|\\(?:times|cdot|div)\s*)\s*$")  # noqa: RUF001
_FOLLOWED = re.compile(
    r"!|[abcdefijknopqrtuvwxyzXYZ](?![a-zA-Z])|[²³⁴-⁹]|\s*[)\]]*\s*\^|\s*[}_*+×·÷π√]"  # noqa: RUF001
    r"|\s*\\(?:times|cdot|div|frac|sqrt|pi)"
    r"|\s*/(?!\s*(?!(?:pi|sqrt|sin|cos|tan|log|ln|exp)(?![a-z]))[a-zA-Z]{2})"
)
_REGION = re.compile(r"\\(?:cup|cap|setminus|mathbb)(?![a-zA-Z])|[<>]|\\(?:le|ge|ne)(?![a-zA-Z])")


@with_cpu_budget(CPU_BUDGET_S)
def math(response: str, answer: str, metadata: Mapping[str, Any]) -> float:
    r"""1.0 if the response's answer means what `answer` means, else 0.0.

    The answer is the content of the answer tag, else of the last ``\boxed{}``. Without either it is the last number, and only
    a reference that is a number is compared with it.

    Raises:
        ScoringError: `answer` is empty.
    """
    answer = solution_answer(answer)
    reference = _asked_side(plain(unboxed(answer)))
    if not reference:
        raise ScoringError(f"found the reference answer {answer[:60]!r}, expected one that is not empty")
    response = said(response, metadata)
    found = tagged(response)
    found = boxed(response) if found is None else unboxed(solution_answer(found))
    if found is None:
        found = _unmarked(response) if value(quantity(reference)[0]) is not None else None
    if found is None:
        return 0.0
    if len(found) > _MAX_ANSWER or not flat(found) or not flat(reference):
        return float(found.split() == answer.split())
    return float(same(reference, plain(found)))


def _unmarked(response: str) -> str | None:
    """The last number of a response that neither begins an answer nor has the number as a part of a formula.

    A number behind ``####`` at the end of a line comes first.
    """
    if _BEGUN.search(response):
        return None
    # A model that goes on with empty lines to its limit would have each space looked at from each other.
    response = re.sub(r"\s{2,}", lambda found: "\n" * min(2, found[0].count("\n")) or " ", response)
    for headed in reversed([*_HEADED.finditer(response)]):
        if len(headed[1]) <= _MAX_ANSWER and value(quantity(plain(headed[1]))[0]) is not None:
            return str(headed[1]).rstrip()
    response = _STYLE.sub(r"\1", _EMPHASIS.sub(lambda found: f"{found[2] or found[4]} ", response))
    number = last_number(response)
    if number is None:
        return None
    at = response.rindex(number)
    before, after = response[:at], response[at + len(number) :]
    return None if _is_within(before, number) or _FOLLOWED.match(after) else number


def _is_within(before: str, number: str) -> bool:
    """Whether what stands before a number makes it a part of something else: ``x^2``, ``10-5``, ``1 3/4``, ``3:40``."""
    if number[0] in "+-\u2212" and re.search(r"[A-Za-z0-9_)\]}]$", before):
        return True
    if "/" in number and re.search(r"\d\s*$", before):
        return True
    return re.search("[A-Za-z]$", before) is not None or _WITHIN.search(before) is not None


def same(reference: str, response: str) -> bool:
    """Whether two answers in plain LaTeX mean the same. Not symmetric: the reference says what is asked for."""
    if reference == response:
        return True
    if not response:
        return False
    if is_choice(reference):
        return choice(reference) == choice(response)
    if r"\approx" in response:
        exact = _exact_side(response)
        return exact is not None and same(reference, exact)
    if is_described(reference) or is_described(response):
        return _same_described(reference, response)
    asked, said = shape(reference), shape(response)
    if (asked.kind == "list" and is_in_interval(response)) or (said.kind == "list" and is_in_interval(reference)):
        return False
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


def _same_shape(reference: AnswerShape, response: AnswerShape, whole: str, given: str) -> bool:
    if max(len(reference.parts), len(response.parts)) > _MAX_PARTS:
        return False
    kinds = reference.kind, response.kind
    if kinds == ("one", "one"):
        return _same_one(reference.parts[0], response.parts[0])
    if kinds == ("ordered", "ordered"):
        return reference.brackets == response.brackets and _in_order(reference.parts, response.parts)
    if "ordered" in kinds and "list" in kinds:
        ordered, plain = (reference, response) if kinds[0] == "ordered" else (response, reference)
        return ordered.brackets == "()" and not plain.worded and _in_order(reference.parts, response.parts)
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
    if given_unit.startswith("base") and not unit:
        return False  # the digits of another base are another number
    if (unit and given.endswith("%")) or (given_unit and number.endswith("%")):
        return False
    if unit or given_unit:
        return same(number, given)
    if is_text(reference) or is_text(response):
        return same_text(reference, response)
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


def _is_region(text: str, found: AnswerShape) -> bool:
    return (found.kind == "ordered" and len(found.parts) == 2) or _REGION.search(text) is not None


def _same_described(reference: str, response: str) -> bool:
    """Compare sets by a condition, or inequalities joined by words, of which one at least is asked for or answered."""
    asked, given = region(reference), region(response)
    if asked is not None and given is not None and builder(reference) and builder(response):
        return expressions.equal_sets(asked[1], given[1])
    if asked is not None and given is not None:
        return (asked[0] == given[0] or "" in (asked[0], given[0])) and expressions.equal_sets(asked[1], given[1])
    first, second = builder(reference), builder(response)
    if any(found is not None and not _names(found[0], found[2]) for found in (first, second)):
        return False
    if first is not None and second is not None:
        # The name of a set's elements is nobody's business.
        renamed = re.sub(_alone(second[0]), lambda _: first[0], second[2])
        return first[1] == second[1] and (
            first[2].replace(" ", "") == renamed.replace(" ", "") or same(first[2], renamed)
        )
    if first is None and second is None:
        return _same_shape(shape(reference), shape(response), reference, response)
    _, domain, said = first or second or ("", "", "")
    return domain in ("", r"\mathbb{R}") and same(*((said, response) if first else (reference, said)))


def _names(name: str, text: str) -> bool:
    return all(re.search(_alone(each), text) for each in re.findall(r"\\?[a-zA-Z]+", name))


def _alone(name: str) -> str:
    return rf"(?<![a-zA-Z\\]){re.escape(name)}(?![a-zA-Z])"


def _asked_side(reference: str) -> str:
    r"""The value of a reference such as ``\approx 3.14`` or ``x \approx 3.14``; the exact side where there are two values."""
    if r"\approx" not in reference:
        return reference
    first, *others = _approximated(reference)
    return first if first or not others else others[0]


def _exact_side(text: str) -> str | None:
    r"""The exact side of ``\sqrt{2} \approx 1.41``, or the number of ``x \approx 1.41``; None if the sides contradict."""
    first, *others = _approximated(text)
    exact = expressions.decimal_value(_fraction(chain(named(first)[1])[-1]), 30)
    for other in others:
        rough = expressions.decimal_value(_fraction(other), 30)
        if exact is None or rough is None:
            return None
        places = len(other.partition(".")[2]) if re.fullmatch(r"-?\d*\.?\d+", other) else None
        last = Fraction(0) if places is None else Fraction(1, 10**places) if places else Fraction(1, 2)
        if abs(Fraction(exact) - Fraction(rough)) > max(last, abs(Fraction(exact)) / 100):
            return None
    return first


def _approximated(text: str) -> list[str]:
    r"""The members of ``a \approx b``, without a name before the first."""
    members = [member.strip() for member in text.split(r"\approx")]
    if len(members) > 1 and (not members[0] or ("=" not in members[0] and named(f"{members[0]} = 0")[0])):
        del members[0]
    return members


def _fraction(text: str) -> str:
    return text[:-1] + r" \cdot \frac{1}{100}" if text.endswith("%") else text
