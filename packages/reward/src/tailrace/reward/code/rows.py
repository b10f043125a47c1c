"""The tests of a data row: what is asked of a program, and the limits that it gets."""

from __future__ import annotations

import json
import keyword
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tailrace.reward.code.compare import same_text, same_value
from tailrace.reward.errors import CodeRowError
from tailrace.reward.settings import TOLERANCE, CodeSettings

MEMORY_MIB, OUTPUT_KIB = 256, 64
"""Limits of tests that are small."""
_LEAST_MEMORY_MIB = 16  # of which an interpreter that does nothing takes most
_MEMORY_TIMES, _OUTPUT_TIMES = 16, 4  # what a program may need beyond, as multiples of a test's input and output
_FORMS = 'a list of {"args": [...], "expected": value} with "entry_point", or of {"stdin": text, "stdout": text}'
_DEFAULTS = CodeSettings()


@dataclass(frozen=True, slots=True)
class CodeTests:
    """The hidden tests of a row.

    Args:
        entry_point: the function that is called, or a method, such as ``Solution.f``; None: each test runs the whole program.
        inputs: for each test, the function's arguments, or the text on stdin.
        expected: for each test, the value of the function as JSON, or the text on stdout.
        reference_time_s: CPU seconds of the reference solution's slowest test, if that was measured.
        memory_mib: memory of the program.
        output_kib: KiB that a test may give.
        tolerance: relative error of numbers, see `same_value` and `same_text`.
        input_bytes: size of the largest input.
    """

    entry_point: str | None
    inputs: tuple[Any, ...]
    expected: tuple[Any, ...]
    reference_time_s: float | None = None
    memory_mib: int = MEMORY_MIB
    output_kib: int = OUTPUT_KIB
    tolerance: float = TOLERANCE
    input_bytes: int = 0


def read_tests(metadata: Mapping[str, Any], settings: CodeSettings = _DEFAULTS) -> CodeTests:
    """The tests in a row's metadata: its key ``tests`` holds a list, or the list's JSON as text.

    Limits are those of the row's ``limits``, else of the settings, else as large as its tests need. ``tolerance`` is the row's,
    else that of the settings.

    Raises:
        CodeRowError: there are none, they are malformed, or no program can pass them. The message says what was found.
    """
    found = metadata.get("tests")
    if isinstance(found, str):  # a column of a table has one type, which arguments need not have
        try:
            found = json.loads(found)
        except ValueError as error:
            raise CodeRowError(f"found 'tests' that are no JSON ({error}), expected {_FORMS}") from error
    if not isinstance(found, list) or not found:
        keys = ", ".join(map(repr, sorted(metadata))) or "no keys"
        raise CodeRowError(f"found a row without tests ({keys}), expected 'tests': {_FORMS}")
    entry_point = metadata.get("entry_point")
    if entry_point is not None and not (isinstance(entry_point, str) and all(map(_is_name, entry_point.split(".")))):
        raise CodeRowError(
            f"found 'entry_point' = {entry_point!r:.60}, expected the name of a function, or Class.method"
        )
    given, wanted = ("stdin", "stdout") if entry_point is None else ("args", "expected")
    for number, test in enumerate(found, 1):
        well = isinstance(test, Mapping) and given in test and wanted in test
        if not well or not isinstance(test[given], str if entry_point is None else list):
            raise CodeRowError(f"found {test!r:.80} as test {number}, expected 'tests': {_FORMS}")
        if entry_point is None and not isinstance(test[wanted], str):
            raise CodeRowError(f"found 'stdout' = {test[wanted]!r:.60} in test {number}, expected text")
    inputs, expected = tuple(test[given] for test in found), tuple(test[wanted] for test in found)
    in_bytes, out_bytes = _sizes(given, inputs), _sizes(wanted, expected)
    limits = _limits(metadata)
    output_kib = limits["output_kib"] or settings.output_kib
    memory_mib = limits["memory_mib"] or settings.memory_mib
    if output_kib is not None and max(out_bytes) > output_kib << 10:
        place = out_bytes.index(max(out_bytes))
        raise CodeRowError(
            f"found {max(out_bytes):,} bytes of '{wanted}' in test {place + 1} and output_kib = {output_kib}, expected a limit"
            " that a right program can keep"
        )
    tests = CodeTests(
        entry_point,
        inputs,
        expected,
        _number(metadata, "reference_time_s", "seconds"),
        memory_mib or MEMORY_MIB + (_MEMORY_TIMES * (max(in_bytes) + max(out_bytes)) >> 20),
        output_kib or max(OUTPUT_KIB, -(-_OUTPUT_TIMES * max(out_bytes) >> 10)),
        settings.tolerance if (own := _number(metadata, "tolerance", "an error")) is None else own,
        max(in_bytes),
    )
    _refuse_contradictions(tests)
    return tests


def _sizes(name: str, values: Sequence[Any]) -> list[int]:
    """Bytes of each value as it is written: text as UTF-8, others as JSON."""
    found = []
    for number, value in enumerate(values, 1):
        try:
            written = value if name in ("stdin", "stdout") else json.dumps(value)
            found.append(len(written.encode()))
            if name == "expected" and not same_value(written, value, 0):
                raise ValueError("it equals nothing that a function can return")
        except (UnicodeEncodeError, TypeError, ValueError, RecursionError) as error:
            raise CodeRowError(
                f"found '{name}' in test {number} that no program can be given or give ({error!s:.80}), expected"
                f" {'text that UTF-8 can hold' if name.startswith('std') else 'JSON'}"
            ) from error
    return found


def _refuse_contradictions(tests: CodeTests) -> None:
    """Refuse tests of one input that expect different things."""
    first: dict[str, int] = {}
    for number, given in enumerate(tests.inputs):
        before = first.setdefault(given if tests.entry_point is None else json.dumps(given), number)
        one, other = tests.expected[before], tests.expected[number]
        if before == number or one == other:
            continue
        if tests.entry_point is None:
            same = same_text(one, other, tests.tolerance)
        else:
            same = same_value(json.dumps(one), other, tests.tolerance)
        if not same:
            raise CodeRowError(
                f"found tests {before + 1} and {number + 1} that give the same and expect {one!r:.40} and {other!r:.40},"
                " expected tests that a program can pass"
            )


def _number(metadata: Mapping[str, Any], key: str, what: str) -> float | None:
    found = metadata.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise CodeRowError(f"found '{key}' = {found!r:.60}, expected {what}, at least 0")
    return float(found)


def _limits(metadata: Mapping[str, Any]) -> dict[str, int | None]:
    least: dict[str, int] = {"memory_mib": _LEAST_MEMORY_MIB, "output_kib": 1}
    limits = metadata.get("limits") or {}
    unknown = [key for key in limits if key not in least] if isinstance(limits, Mapping) else [limits]
    if unknown:
        raise CodeRowError(f"found {unknown[0]!r:.60} in 'limits', expected 'memory_mib', 'output_kib' or nothing")
    found: dict[str, int | None] = {}
    for key, lowest in least.items():
        value = limits.get(key)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise CodeRowError(f"found limits.{key} = {value!r:.60}, expected a whole number above 0")
        if value is not None and value < lowest:
            raise CodeRowError(f"found limits.{key} = {value}, expected at least {lowest}: Python itself takes as much")
        found[key] = value
    return found


def _is_name(text: str) -> bool:
    return text.isidentifier() and not keyword.iskeyword(text)
