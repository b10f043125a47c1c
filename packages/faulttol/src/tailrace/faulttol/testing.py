"""The contract suite for recovery policies: run it on your own class. Standard library only."""

from __future__ import annotations

from tailrace.contracts import RecoveryAction, RecoveryPolicy
from tailrace.faulttol.recovery import ROLES


def check_recovery_policy(policy: RecoveryPolicy, *, failures: int = 100) -> None:
    """Hold a recovery policy to its contract.

    It answers for every role with an action, the same one every time; it never evicts what the run has only one of; and a
    member that fails again and again is not restarted for ever.

    Raises:
        AssertionError: the policy breaks the contract.
    """
    for role in ROLES:
        actions = [policy.on_down(role, f"{role}-0", count) for count in range(1, failures + 1)]
        again = [policy.on_down(role, f"{role}-0", count) for count in range(1, failures + 1)]
        assert actions == again, f"{role}: the action is not deterministic"
        assert all(isinstance(action, RecoveryAction) for action in actions), f"{role}: {actions} are not all actions"
        assert actions[-1] is not RecoveryAction.RESTART, f"{role}: restarted for the {failures}th time in a row"
        if role in ("trainer", "data"):
            assert RecoveryAction.EVICT not in actions, f"{role}: evicted, and nobody else does its work"
