"""Checks that a reason has the numbers and the name that its kind promises."""

from __future__ import annotations

import math

from tailrace.contracts.reasons import Reason, Why

NUMBERS: dict[Why, frozenset[str]] = {
    Why.LONG_TAIL: frozenset({"predicted", "limit"}),
    Why.REGULAR: frozenset({"predicted", "limit"}),
    Why.CHANCE: frozenset({"recall", "chance"}),
    Why.DRY: frozenset({"predicted"}),
    Why.CACHED: frozenset({"saved", "costs"}),
    Why.CROWDED: frozenset({"saved", "costs"}),
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
    Why.DELAYED: frozenset({"waited_s", "limit_s"}),
    Why.DELAYED_AGAIN: frozenset({"waited_s", "limit_s"}),
    Why.NOT_SCORED_YET: frozenset({"attempts"}),
    Why.ALLOCATED: frozenset({"replicas", "devices", "generation_s", "training_s"}),
    Why.GENERATION_SLOWER: frozenset({"generation_s", "training_s", "saved_s"}),
    Why.TRAINING_SLOWER: frozenset({"generation_s", "training_s", "cost_s"}),
    Why.FAILED: frozenset({"failures", "allowed", "left"}),
    Why.DAMAGED: frozenset({"version"}),
    Why.NOT_TAKEN: frozenset({"version"}),
    Why.STILL: frozenset({"still_s", "limit_s", "failures", "allowed", "left"}),
    Why.SILENT: frozenset({"silent_s", "limit_s", "failures", "allowed", "left"}),
    Why.TASK_RESTART: frozenset({"task_restarts"}),
    Why.MACHINE_SILENT: frozenset({"silent_s", "limit_s", "failures", "allowed", "left"}),
    Why.DIFFERS: frozenset({"version", "failures", "allowed", "left"}),
    Why.HYBRID: frozenset({"limit_s", "failures", "allowed", "left"}),
    Why.NOT_TOLD: frozenset({"version"}),
    Why.NO_USE: frozenset({"version"}),
    Why.IN_ENVIRONMENTS: frozenset({"trajectories"}),
    Why.BUFFER_FULL: frozenset({"open", "limit"}),
    Why.POOL_EMPTY: frozenset({"open", "limit"}),
    Why.ELSEWHERE: frozenset({"open", "limit"}),
    Why.NOT_ADMITTED: frozenset({"version"}),
    Why.NO_BATCH: frozenset({"buffered", "needed"}),
    Why.HELD_FOR_LATER: frozenset({"buffered", "needed"}),
}
"""The numbers of each kind of reason that has any. `CHOSEN` has them only if the policy computes a gain."""

NAMES_ANOTHER = frozenset(
    {
        Why.CROWDED,
        Why.MOVED,
        Why.LOW_THROUGHPUT,
        Why.REPLICA_DOWN,
        Why.REFUSED,
        Why.UNANSWERED,
        Why.MACHINE,
        Why.MACHINE_SILENT,
        Why.STANDBY,
        Why.HYBRID,
        Why.TASK_RESTART,
    }
)
"""Kinds whose `who` is another member or a machine."""

_COUNTED = frozenset({"gain", "least"})
_MAY_BE_MISSING = {
    Why.REGULAR: frozenset({"limit"}),  # nothing is longer
    Why.DRY: frozenset({"predicted"}),  # nothing is predicted
    Why.FAILED: frozenset({"allowed", "left"}),  # a recovery policy need not say it; whoever is given up has the other
    # the controller adds these to the policy's
    Why.STILL: frozenset({"failures", "allowed", "left"}),
    Why.SILENT: frozenset({"failures", "allowed", "left"}),
    Why.MACHINE_SILENT: frozenset({"silent_s", "limit_s", "failures", "allowed", "left"}),
    Why.DIFFERS: frozenset({"failures", "allowed", "left"}),
    Why.HYBRID: frozenset({"limit_s", "failures", "allowed", "left"}),
}


def check_reason(reason: Reason, where: str) -> None:
    """Check a reason against `Why`; a policy's own reason (`Why.POLICY`) may have any numbers.

    Args:
        reason: the reason.
        where: the beginning of an error message.

    Raises:
        AssertionError: a number is missing, unexpected or not finite, or `who` is empty for a kind that needs it.
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
    least = expected - _MAY_BE_MISSING.get(reason.why, frozenset())
    assert least <= found <= expected, f"{where}: {reason} has the numbers {sorted(found)}, expected {sorted(expected)}"
    named, names = bool(reason.who), reason.why in NAMES_ANOTHER
    assert named == names, f"{where}: {reason} {'names somebody' if named else 'names nobody'}, see Why"
