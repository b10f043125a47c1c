"""Numbers with their units: a unit may be left out, but never be another one."""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal, InvalidOperation
from fractions import Fraction

_MAX_DIGITS = 400  # with longer numbers or larger exponents, a response could make the scorer compute for ever
_LATEX_FRACTION = re.compile(r"^([-+]?)\\[dt]?frac\{([-+]?\d+)\}\{([-+]?\d+)\}$")
_FRACTION = re.compile(r"^([-+]?\d+)\s*/\s*([-+]?\d+)$")
_MIXED = re.compile(r"^([-+]?)(\d+)(?:\s*\\[dt]?frac\{(\d+)\}\{(\d+)\}|\s+(\d+)\s*/\s*(\d+))$")
_BEFORE = re.compile(r"^(?:\\[(\[,;! ]|\s|\$)*([-+]?)(?:\\?[$£€]|\\[(\[,;! ]|\s)*")
_BEHIND = re.compile(r"(?:\\[)\],;! ]|\s|\\?[$£€%]|\\(?:text|mathrm)\{\s*[a-zA-Z .]*\}(?:\^\{?[23]\}?)?)*$")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\}|\\[,!;: ]|(?<=\d)\\!,)(?=\d{3}(?!\d))")
_PLAIN = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def parse_number(text: str) -> Fraction | None:
    r"""The exact value of a number such as ``1,000``, ``-3.50``, ``2e3``, ``\frac{3}{4}``, ``1 3/4`` or ``$5``; or None.

    What may stand around it: dollar signs, a currency, a percent sign, a unit in ``\text{}``. Nothing may stand within it but
    what separates thousands: ``5_2``, ``5 2`` and ``5\text{ or }7`` are no numbers.
    """
    if len(text) > _MAX_DIGITS:
        return None
    plain = _BEHIND.sub("", text.replace("−", "-"), count=1)  # noqa: RUF001 (the typographic minus sign)
    plain = _BEFORE.sub(lambda found: found[1], plain, count=1)
    plain = _THOUSANDS.sub("", plain).removesuffix(".")
    if latex := _LATEX_FRACTION.match(plain):
        sign, top, bottom = latex.groups()
        plain = f"{'-' if sign == '-' else ''}{top}/{bottom}".replace("--", "")
    if mixed := _MIXED.match(plain):
        whole, top, bottom = (int(digits) for digits in mixed.groups()[1:] if digits)
        return Fraction(whole * bottom + top, bottom) * (-1 if mixed[1] == "-" else 1) if top < bottom else None
    if ratio := _FRACTION.match(plain):
        return Fraction(int(ratio[1]), int(ratio[2])) if int(ratio[2]) else None
    if not _PLAIN.fullmatch(plain):
        return None
    try:
        value = Decimal(plain)
    except InvalidOperation:
        return None
    if not value.is_finite() or abs(value.adjusted()) > _MAX_DIGITS:
        return None
    return Fraction(value)


_UNITS = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "g": "gram gm", "kg": "kilogram kgs", "mg": "milligram",
    "lb": "pound lbs", "oz": "ounce", "s": "second sec", "min": "minute", "h": "hour hr hrs", "day": "", "week": "",
    "month": "", "year": "yr yrs", "L": "liter litre l", "mL": "milliliter millilitre ml", "deg": "degree ^\\circ",
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
_POWER = r"(?:\s*\^\s*(?:\{\s*-?\d\s*\}|-?\d))?"
_FACTOR = rf"(?:\\text\{{[^{{}}]*\}}|(?<![a-zA-Z\\])[a-zA-Z]+(?![a-zA-Z])\.?){_POWER}"
_DEGREE = r"\^\\circ\s*(?:(?:\\text\{\s*)?[CF](?:\s*\})?)?|\\text\{\s*\^\\circ\s*[CF]?\s*\}"
_SUFFIX = re.compile(
    r"^(?P<number>.*?(?:[\d)}\].%]|\\pi))(?P<space>\s*)(?:"
    rf"(?P<degree>{_DEGREE})|(?P<currency>[€£¥₹])"
    rf"|(?P<unit>(?:(?:/|per\s)\s*)?{_FACTOR}(?:\s*(?:(?:/|\\cdot|\*)\s*)?{_FACTOR})*))$"  # one way to read a space
)
_TRIGONOMETRY = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc|c?tg|cosec)(?![a-z])")
_BASE = re.compile(r"^(\d+)_(?:\{(\d+)\}|(\d+)|\{?\\text\{(\w+)\}\}?)$")
_POWER_WORDS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_POWERS_BEHIND = {"squared": 2, "cubed": 3}
_UNKNOWN = re.compile(
    r"(?:\\text\{\s*(?P<text>[a-zA-Z][a-zA-Z ./]*?)\s*\}|(?P<word>[a-zA-Z]{3,}(?:\s*(?:/|per)\s*[a-zA-Z]{3,})?)\.?)"
    r"(?P<power>(?:\s*\^\s*\{?\s*[23]\s*\}?)?)"
)
_UNIT_TOKEN = re.compile(r"[a-zA-Z]+|\^\s*\{?\s*-?\d|[/*]|[^\s.{}]")


def quantity(text: str) -> tuple[str, str]:
    """The number's text and its unit by one name for all its spellings; the unit is empty where there is none.

    ``5 metres`` gives ``("5", "m")``, ``\\$5`` gives ``("5", "dollar")``, ``5 \\text{m}/\\text{s}^2`` gives ``("5", "m/s2")``,
    ``1011_2`` gives ``("1011", "base 2")``.
    """
    if base := _BASE.match(text):
        return base[1], f"base {base[2] or base[3] or base[4]}"
    if prefix := _PREFIX.match(text):
        number, unit = _measured(prefix[1] + text[prefix.end() :], priced=True)
        currency = _CURRENCY[prefix[2]]
        return number, currency if unit in ("", currency) else f"{currency}{'' if unit.startswith('/') else ' '}{unit}"
    return _measured(text)


def _measured(text: str, *, priced: bool = False) -> tuple[str, str]:
    found = _SUFFIX.match(text)
    unit = "" if found is None else _unit(found, priced)
    return (text, "") if found is None or not unit else (found["number"].strip(), unit)


def _unit(found: re.Match[str], priced: bool) -> str:
    if found["degree"]:
        if _TRIGONOMETRY.search(found["number"]):
            return ""  # the argument's degrees
        return "degF" if "F" in found["degree"] else "deg"
    if found["currency"]:
        return _CURRENCY[found["currency"]]
    written = found["unit"]
    bare = r"\text" not in written
    flat = written.replace(r"\text", " ").replace(r"\cdot", "*")
    words = re.findall("[a-zA-Z]+", flat)
    known = _known(flat)
    if known is not None:
        short = any(len(word) == 1 for word in words) and not priced and words != ["N", "m"]
        # `5m` and `2ab` are products and `5/m` a quotient; `5 m`, `5cm`, `5m/s` and `5/day` are quantities.
        product = short and (not found["space"] or len(words) > 1) and not ("/" in written and len(words) > 1)
        return "" if bare and (product or (short and written.startswith("/"))) else known
    if {word.lower() for word in words} & _NO_UNIT:
        return ""
    name = _UNKNOWN.fullmatch(written)
    if name is None or (bare and not found["space"]):
        return ""
    word = (name["text"] or name["word"]).lower().removesuffix("s")
    return word + "".join(letter for letter in name["power"] if letter.isdigit())


def _known(text: str) -> str | None:
    """The one name of a known unit, or of a product or quotient of known ones."""
    powers: Counter[str] = Counter()
    sign, power, last = 1, 1, ("", 0)
    for token in _UNIT_TOKEN.findall(text):
        word = token.lower()
        if word in ("/", "per"):
            sign, last = -1, ("", 0)
        elif word == "*":
            last = ("", 0)
        elif word in _POWER_WORDS:
            power = _POWER_WORDS[word]
        elif word.startswith("^") or word in _POWERS_BEHIND:
            if not last[0] or "/" in last[0]:
                return None
            raised = _POWERS_BEHIND.get(word) or int(re.sub(r"[^-\d]", "", word))
            powers[last[0]] += last[1] * (raised - 1)
            last = ("", 0)
        elif unit := _ALIASES.get(token) or _ALIASES.get(word):
            above, _, below = unit.partition("/")
            powers[above] += sign * power
            if below:
                powers[below] -= sign * power
            last = (unit, sign * power)
            sign, power = 1, 1
        else:
            return None
    above = " ".join(_raised(unit, powers[unit]) for unit in sorted(powers) if powers[unit] > 0)
    below = "".join(f"/{_raised(unit, -powers[unit])}" for unit in sorted(powers) if powers[unit] < 0)
    return above + below or None if (sign, power) == (1, 1) else None


def _raised(unit: str, power: int) -> str:
    return unit if power == 1 else f"{unit}{power}"


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
