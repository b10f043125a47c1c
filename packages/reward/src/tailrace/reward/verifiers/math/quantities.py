"""Numbers with their units: a unit may be left out, but never be another one."""

from __future__ import annotations

import re
from fractions import Fraction

from tailrace.reward.verifiers.numeric import parse_number

_UNITS = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram gm", "kg": "kilogram", "mg": "milligram",
    "lb": "pound lbs", "oz": "ounce", "s": "second sec", "min": "minute", "h": "hour hr", "day": "", "week": "",
    "month": "", "year": "yr", "L": "liter litre l", "mL": "milliliter millilitre ml", "deg": "degree ^\\circ",
    "rad": "radian", "dollar": "", "cent": "", "euro": "", "N": "newton", "J": "joule", "W": "watt", "V": "volt",
    "A": "ampere amp", "Hz": "hertz", "Pa": "pascal", "K": "kelvin", "mi/h": "mph", "km/h": "kmh kph", "unit": "",
    "ohm": "", "mol": "mole", "acre": "", "gallon": "gal", "person": "people",
}  # fmt: skip
_ALIASES = {
    written + plural: unit
    for unit, others in _UNITS.items()
    for written in (unit, *others.split())
    for plural in (("", "s") if len(written) > 2 else ("",))
}
# A word after a number that changes it, or says that it is not the answer.
_NO_UNIT = frozenset(
    """
    hundred thousand million billion trillion dozen half halves third thirds quarter quarters fifth tenth
    times squared cubed factorial more less least most not percent mod modulo and but else maybe something pi
    sqrt sin cos tan log ln exp inf infinity plus minus over choose base remainder
    """.split()  # noqa: SIM905 (fifty lines otherwise)
)
_CURRENCY = {"$": "dollar", r"\$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen", "₹": "rupee"}
_PREFIX = re.compile(r"^(-?)\s*(\\\$|[$€£¥₹])\s*(?=[\d.\\])")
_SUFFIX = re.compile(
    r"^(?P<number>.*[\d})\].%]|.*\\pi)(?P<space>\s*)(?:"
    r"(?P<degree>\^\\circ)|\\text\{\s*(?P<text>[^{}]*?)\s*\}|(?P<currency>[€£¥₹])"
    r"|(?P<word>(?:(?:square|cubic|sq\.?|cu\.?) )?[a-zA-Z]+(?:(?:/| per )[a-zA-Z]+)?)"
    r")(?P<power>\s*\^\s*\{?[23]\}?)?$"
)
_BASE = re.compile(r"^(\d+)_(?:\{(\d+)\}|(\d+)|\{?\\text\{(\w+)\}\}?)$")
_POWER_WORDS = re.compile(r"^(square|cubic|sq\.?|cu\.?)\s+(.+)$")


def quantity(text: str) -> tuple[str, str]:
    """The number's text and its unit by one name for all its spellings; the unit is empty where there is none.

    ``5 metres`` gives ``("5", "m")``, ``\\$5`` gives ``("5", "dollar")``, ``1011_2`` gives ``("1011", "base 2")``.
    """
    if base := _BASE.match(text):
        return base[1], f"base {base[2] or base[3] or base[4]}"
    if prefix := _PREFIX.match(text):
        return prefix[1] + text[prefix.end() :], _CURRENCY[prefix[2]]
    found = _SUFFIX.match(text)
    if found is None:
        return text, ""
    unit = _unit(found)
    if not unit:
        return text, ""
    return found["number"].strip(), unit


def _unit(found: re.Match[str]) -> str:
    power = "".join(letter for letter in found["power"] or "" if letter.isdigit())
    if found["degree"]:
        return "deg"
    if found["currency"]:
        return _CURRENCY[found["currency"]]
    word = found["text"] if found["text"] is not None else found["word"]
    if words := _POWER_WORDS.match(word):
        power, word = ("2" if words[1].startswith("sq") else "3"), words[2]
    lowered = word.lower()
    if set(re.findall("[a-z]+", lowered)) & _NO_UNIT:
        return ""
    known = _known(word)
    if found["word"] is not None:
        # `5m` and `2ab` are products, `5 m`, `5cm` and `3 apples` are quantities.
        if known is None and (len(word) < 3 or not found["space"]):
            return ""
        if len(word) == 1 and not found["space"]:
            return ""
    if known is None and not re.fullmatch(r"[a-zA-Z][a-zA-Z ./]*", word):
        return ""
    return (known or lowered.removesuffix("s")) + power


def _known(word: str) -> str | None:
    """The one name of a known unit, or of a quotient of two."""
    if found := _ALIASES.get(word) or _ALIASES.get(word.lower()):
        return found
    top, sign, bottom = word.replace(" per ", "/").partition("/")
    units = _ALIASES.get(top.lower()), _ALIASES.get(bottom.lower())
    return f"{units[0]}/{units[1]}" if sign and all(units) else None


def value(text: str) -> Fraction | None:
    """The exact value of a plain number, or None. A percent sign divides by 100."""
    if any(letter in text for letter in "$€£_\\") and not text.lstrip("-").startswith(r"\frac"):
        return None
    if text.endswith(".") or "%" in text[:-1]:
        return None
    found = parse_number(text)
    return found / 100 if found is not None and text.endswith("%") else found


_ROUNDED = re.compile(r"^-?\d*\.(\d+)$")
_SIGNIFICANT = 6  # digits from which on a decimal may stand for a value that has no finite one


def rounds_to(exact: Fraction, decimal: str) -> bool:
    """Whether a decimal of at least six significant digits is the value rounded, or cut off, to its digits."""
    found = _ROUNDED.match(decimal)
    if found is None or len(decimal.lstrip("-").replace(".", "").lstrip("0")) < _SIGNIFICANT:
        return False
    last = Fraction(1, 10 ** len(found[1]))
    more = (exact - Fraction(decimal)) * (-1 if exact < 0 else 1)
    return abs(more) <= last / 2 or 0 <= more < last


def endless(number: Fraction) -> bool:
    """Whether a value has no finite decimal."""
    bottom = number.denominator
    for prime in (2, 5):
        while bottom % prime == 0:
            bottom //= prime
    return bottom != 1
