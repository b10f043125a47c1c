"""Whether a reason says what its kind promises."""

from __future__ import annotations

import math

from tailrace.contracts.reasons import Reason, Why

NUMBERS: dict[Why, frozenset[str]] = {
    Why.EVALUATION: frozenset({"version"}),
    Why.BEHIND: frozenset({"version"}),
    Why.ALL_IDLE: frozenset({"version"}),
    Why.USEFUL: frozenset({"version"}),
    Why.NEWER: frozenset({"version"}),
    Why.STRANDED: frozenset({"version"}),
    Why.PULLING: frozenset({"version"}),
    Why.WAITING_TOO_LONG: frozenset({"waiting", "limit"}),
    Why.LOW_THROUGHPUT: frozenset({"here", "there"}),
    Why.VERSION_GONE: frozenset({"version"}),
    Why.TRAINED: frozenset({"version"}),
    Why.NOT_SCORED: frozenset({"attempts"}),
    Why.FAILED: frozenset({"failures"}),
    Why.DAMAGED: frozenset({"version"}),
    Why.STILL: frozenset({"still_s", "limit_s"}),
}
"""The numbers that come with a kind of reason, where any do. `CHOSEN` has its own only where the policy counts them."""

NAMES_ANOTHER = frozenset({Why.MOVED, Why.LOW_THROUGHPUT, Why.REPLICA_DOWN, Why.MACHINE})
"""Kinds whose `who` is another member or a machine."""

_COUNTED = frozenset({"gain", "least"})


def check_reason(reason: Reason, where: str) -> None:
    """Hold a reason to what `Why` says of its kind; a policy's own (`Why.POLICY`) may have any numbers.

    Args:
        where: begins the message.

    Raises:
        AssertionError: a number is missing, too much or not finite, or nobody is named who should be.
    """
    assert isinstance(reason, Reason), f"{where}: found the reason {reason!r}, expected a Reason"
    assert isinstance(reason.why, Why), f"{where}: found {reason.why!r}, expected a member of Why"
    for name, number in reason.numbers.items():
        plain = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
        assert isinstance(name, str), f"{where}: {reason} names a number {name!r}"
        assert plain, f"{where}: {reason} has {name}={number!r}, expected a finite number"
    if reason.why is Why.POLICY:
        return
    found, expected = frozenset(reason.numbers), NUMBERS.get(reason.why, frozenset())
    if reason.why is Why.CHOSEN and found:
        expected = _COUNTED
    assert found == expected, f"{where}: {reason} has the numbers {sorted(found)}, expected {sorted(expected)}"
    named, names = bool(reason.who), reason.why in NAMES_ANOTHER
    assert named == names, f"{where}: {reason} {'names somebody' if named else 'names nobody'}, see Why"
