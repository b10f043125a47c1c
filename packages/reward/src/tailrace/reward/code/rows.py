"""The tests of a data row, and the program of a response."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.reward.errors import CodeRowError
from tailrace.reward.extraction import tagged

MEMORY_MIB = 256
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)
_FORMS = 'a list of {"args": [...], "expected": value} with "entry_point", or of {"stdin": text, "stdout": text}'


@dataclass(frozen=True, slots=True)
class CodeTests:
    """The hidden tests of a row.

    Args:
        entry_point: the function that is called; None: each test runs the whole program.
        inputs: for each test, the function's arguments, or the text on stdin.
        expected: for each test, the value of the function as JSON, or the text on stdout.
        reference_time_s: CPU seconds of the reference solution's slowest test, if that was measured.
        memory_mib: memory of the program.
    """

    entry_point: str | None
    inputs: tuple[Any, ...]
    expected: tuple[Any, ...]
    reference_time_s: float | None = None
    memory_mib: int = MEMORY_MIB


def read_tests(metadata: Mapping[str, Any]) -> CodeTests:
    """The tests in a row's metadata: its key ``tests`` holds a list, or the list's JSON as text.

    Raises:
        CodeRowError: there are none, or they are malformed. The message says what was found.
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
    if entry_point is not None and not (isinstance(entry_point, str) and entry_point.isidentifier()):
        raise CodeRowError(f"found 'entry_point' = {entry_point!r:.60}, expected the name of a function")
    given, wanted = ("stdin", "stdout") if entry_point is None else ("args", "expected")
    for number, test in enumerate(found, 1):
        well = isinstance(test, Mapping) and given in test and wanted in test
        if not well or not isinstance(test[given], str if entry_point is None else list):
            raise CodeRowError(f"found {test!r:.80} as test {number}, expected 'tests': {_FORMS}")
    return CodeTests(
        entry_point,
        tuple(test[given] for test in found),
        tuple(test[wanted] for test in found),
        _number(metadata, "reference_time_s"),
        _memory(metadata),
    )


def program_in(response: str) -> str:
    """The program of a response: its last complete fenced block, else its answer tag, else the whole response."""
    fenced = _FENCE.findall(response)
    if fenced:
        return str(fenced[-1])
    inside = tagged(response)
    return response if inside is None else inside


def _number(metadata: Mapping[str, Any], key: str) -> float | None:
    found = metadata.get(key)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < math.inf:
        raise CodeRowError(f"found '{key}' = {found!r:.60}, expected seconds, at least 0")
    return float(found)


def _memory(metadata: Mapping[str, Any]) -> int:
    limits = metadata.get("limits") or {}
    unknown = [key for key in limits if key != "memory_mib"] if isinstance(limits, Mapping) else [limits]
    if unknown:
        raise CodeRowError(f"found {unknown[0]!r:.60} in 'limits', expected 'memory_mib' or nothing")
    memory = limits.get("memory_mib") or MEMORY_MIB
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
        raise CodeRowError(f"found limits.memory_mib = {memory!r:.60}, expected a whole number above 0")
    return memory
