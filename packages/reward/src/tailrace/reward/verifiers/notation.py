"""Brings an answer into one notation: LaTeX without decoration, ASCII digits, no sentence around it. Never raises."""

from __future__ import annotations

import re
import unicodedata

_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+")
_LOWERED = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_SYMBOLS = {
    "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "×": r"\times ", "÷": "/", "·": r"\cdot ", "⋅": r"\cdot ",  # noqa: RUF001
    "∙": r"\cdot ", "−": "-", "–": "-", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "±": r"\pm ",  # noqa: RUF001
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "°": r"^\circ ",  # noqa: RUF001
    "⟨": r"\langle ", "⟩": r"\rangle ", "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "％": "%",  # noqa: RUF001
    "∶": ":", "∖": r"\setminus ", "∣": "|", "∨": r"\text{ or }", "∧": r"\text{ and }",  # noqa: RUF001
}  # fmt: skip
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\(?:left|right|m?left|m?right|[bB]ig[lrg]?|[bB]igg[lrg]?)(?![a-zA-Z])\.?", ""),
        (r"\\(?:displaystyle|textstyle|limits)(?![a-zA-Z])", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\(?:[,;: ]|quad(?![a-zA-Z])|qquad(?![a-zA-Z]))|~", " "),
        (r"\{,\}", ","),
        (r"\\(?:SI|qty)\s*\{([^{}]*)\}\s*\{([^{}]*)\}", r"\1\\text{ \2}"),
        (r"\\operatorname\*?\{(\w+)\}", r"\\\1 "),
        (r"\\(?:mathbf|Bbb|mathds|mathbb)\s*(?:\{\s*([RZNQC])\s*\}|([RZNQC])(?![a-zA-Z]))", r"\\mathbb{\1\2}"),
        (
            r"\\(?:mathrm|mathbf|mathit|mathsf|boldsymbol|bm|textbf|textit|textrm|textsf|textnormal|mbox|hbox|underline)\s*\{",
            r"\\text{",
        ),
        (r"(\\text\{[^{}]*\^)\{\s*(-?\d)\s*\}", r"\1\2"),
        (r"\\text\s*\{([^{}a-zA-Z\\]*[^{}a-zA-Z\\\s,.][^{}a-zA-Z\\]*)\}", r"\1"),
        (
            r"\\frac\s*\{\s*(\\text\{[^{}]*\})\s*\}\s*\{\s*(\\text\{[^{}]*\}(?:\s*\^\s*(?:\{\s*\d\s*\}|\d))?)\s*\}",
            r"\1/\2",
        ),
        (r"\\(?:leq|leqslant|le)(?![a-zA-Z])", r"\\le "),
        (r"\\(?:geq|geqslant|ge)(?![a-zA-Z])", r"\\ge "),
        (r"\\(?:neq|ne)(?![a-zA-Z])", r"\\ne "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"!=(?!=)", r"\\ne "),
        (r"\\(?:varnothing)(?![a-zA-Z])", r"\\emptyset "),
        (r"\\mid(?![a-zA-Z])", "|"),
        (r"\\(?:lor|vee)(?![a-zA-Z])", r"\\text{ or }"),
        (r"\\(?:land|wedge)(?![a-zA-Z])", r"\\text{ and }"),
        (r"(?<![\w)}\]])\+\s*(?=\\infty|oo(?!\w)|inf(?!\w)|infinity)", ""),
        (r"\\(?:lvert|rvert|vert)(?![a-zA-Z])", "|"),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\\degree(?![a-zA-Z])", r"^\\circ "),
        (r"\\%|\s*(?<![a-zA-Z])(?:percent|pct)(?![a-zA-Z])|\\text\{\s*(?:percent|%)\s*\}", "%"),
        (r"\\text\{\s*\}", ""),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
    )
]
_BETWEEN = r"(?:\{,\}|,\\!|\\!,|\\[,!;: ])"
_THOUSANDS = re.compile(rf"(?<![\d.,!}}])[1-9]\d{{0,2}}(?:{_BETWEEN}\d{{3}})+(?!\d|{_BETWEEN}\d)")
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]|\$\$|\$(?=[^$]*[^$\s]\$)(?P<inside>[^$]*)\$")
_BOLD = re.compile(r"^(\*\*|__|\*|`)(?=\S)(.+)(?<=\S)\1$")
_SENTENCE = re.compile(
    r"^(?:so |thus |hence |therefore,? )?(?:(?:the|my|final|correct) )*answer\s*(?:is|:|=)\s*:?\s*", re.I
)
_BOX = re.compile(r"^\\(?:boxed|fbox|framebox)\s*\{(.*)\}$")


def plain(text: str) -> str:
    """The answer in plain LaTeX. ``½`` becomes ``\\frac{1}{2}``, ``x²`` becomes ``x^{2}``, ``$5$.`` becomes ``5``."""
    text = _RAISED.sub(lambda found: "^{" + found[0].translate(_SUPERSCRIPTS) + "}", text)
    text = _LOWERED.sub(lambda found: "_{" + found[0].translate(_SUBSCRIPTS) + "}", text)
    text = "".join(map(_letter, text))
    text = " ".join(unicodedata.normalize("NFKC", text).split())
    text = _SENTENCE.sub("", text)
    if bold := _BOLD.match(text.removesuffix(".")):
        text = _SENTENCE.sub("", bold[2])
    text = _DELIMITERS.sub(lambda found: found["inside"] or "", text)
    # A bare comma may part two numbers; what stands between thousands in LaTeX does not.
    text = _THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    text = " ".join(text.split())
    if box := _BOX.match(text):
        text = box[1]
    text = text.strip().removesuffix(".").strip()
    while _is_group(text):
        text = text[1:-1].strip()
    return text


def _is_group(text: str) -> bool:
    """Whether braces that mean nothing enclose a text: ``{5}``."""
    if not (text.startswith("{") and text.endswith("}") and not text.endswith(r"\}")):
        return False
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter in "{") - (letter in "}")
        if depth == 0:
            return at == len(text) - 1
    return False


def _letter(letter: str) -> str:
    if letter.isascii():
        return letter
    if letter in _SYMBOLS:
        return _SYMBOLS[letter]
    if unicodedata.category(letter) == "Nd":
        return str(unicodedata.decimal(letter))
    whole = unicodedata.normalize("NFKC", letter)
    if "\N{FRACTION SLASH}" in whole:
        top, bottom = whole.split("\N{FRACTION SLASH}")
        return rf"\frac{{{top}}}{{{bottom}}}"
    return letter


_FUNCTIONS = (
    "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp",
)  # fmt: skip
_NAMED = re.compile(rf"(?<![a-zA-Z\\])({'|'.join(_FUNCTIONS)})(?![a-zA-Z])")
_CONSTANTS = re.compile(r"(?<![a-zA-Z\\])(?:(?P<pi>pi)|(?P<infinity>infinity|inf|oo))(?![a-zA-Z])")
_ROOT_CALL = re.compile(r"(?<![a-zA-Z])\\?sqrt\s*\(")
_ROOT_WORD = re.compile(r"\\sqrt\s*(\d+|[a-zA-Z])(?![\w{])")
_POWER_CALL = re.compile(r"\^\s*\(")
_POWER = re.compile(r"\^\s*(-?\d+(?:\.\d+)?|-[a-zA-Z])")
_SCIENTIFIC = re.compile(r"(?<![\w.}])(\d+(?:\.\d+)?)[eE]([-+]?\d+)(?!\w)")
_REPEATING = re.compile(r"(?<![\d.])(\d*)\.(\d*)\\(?:overline|bar)\{(\d+)\}")
_MIXED = re.compile(r"(?<![\w.}/^])(\d+)\s+(\d+)\s*/\s*(\d+)(?![\w.])")
_DECIMAL = re.compile(r"(?<![\w.])(\d*)\.(\d+)(?![\w.])")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)(?!\d)")


_FRACTION_OF_LETTERS = re.compile(r"\\frac(?:\s+([a-zA-Z])|\s*(\d))\s*([a-zA-Z\d])(?![\w{])")
_NUMBER_OF_DEGREES = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*\^\\circ(?![a-zA-Z])")
_DEGREES = re.compile(r"(\)|\})\s*\^\\circ(?![a-zA-Z])")
_RENAMED = {
    "lg": "log_{10}", "tg": "tan", "ctg": "cot", "cotg": "cot", "arctg": "arctan", "arcctg": "arccot", "cosec": "csc",
    "sh": "sinh", "ch": "cosh", "th": "tanh",
}  # fmt: skip
_OTHER_NAMES = re.compile(rf"\\({'|'.join(_RENAMED)})(?![a-zA-Z])")


def expression(text: str) -> str:
    """Plain LaTeX as the parser reads it: ``2**10`` is ``2^{10}``, ``sqrt(2)`` ``\\sqrt{2}``, a decimal a fraction."""
    text = text.replace("**", "^").replace("*", r"\cdot ")
    text = _NUMBER_OF_DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", text)
    text = _DEGREES.sub(r"\1\\cdot\\frac{\\pi}{180}", text)
    text = _OTHER_NAMES.sub(lambda found: f"\\{_RENAMED[found[1]]} ", text)
    text = _REPEATING.sub(_repeating, text)
    text = _SCIENTIFIC.sub(lambda found: rf"({found[1]}\cdot 10^{{{int(found[2])}}})", text)
    text = _CONSTANTS.sub(lambda found: r"\pi " if found["pi"] else r"\infty ", text)
    text = _NAMED.sub(r"\\\1 ", text)
    text = _braced(text, _ROOT_CALL, r"\sqrt{")
    text = _braced(text, _POWER_CALL, "^{")
    text = _ROOT_WORD.sub(r"\\sqrt{\1}", text)
    text = _POWER.sub(r"^{\1}", text)
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _FRACTION_OF_LETTERS.sub(lambda found: rf"\frac{{{found[1] or found[2]}}}{{{found[3]}}}", text)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", text)
    return _DECIMAL.sub(lambda found: rf"(\frac{{{int(found[1] + found[2])}}}{{1{'0' * len(found[2])}}})", text)


def _repeating(found: re.Match[str]) -> str:
    whole, fixed, repeated = found[1] or "0", found[2], found[3]
    top = int(whole + fixed + repeated) - int(whole + fixed)
    return rf"(\frac{{{top}}}{{{'9' * len(repeated)}{'0' * len(fixed)}}})"


def _braced(text: str, opening: re.Pattern[str], written: str) -> str:
    """Replace a call's parentheses, which may nest, by braces."""
    while found := opening.search(text):
        depth, end = 1, found.end()
        while end < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if depth:
            return text
        text = f"{text[: found.start()]}{written}{text[found.end() : end - 1]}}}{text[end:]}"
    return text
