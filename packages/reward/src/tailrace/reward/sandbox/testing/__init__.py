"""Contract suite for sandboxes: `check_sandbox` for what a caller relies on, `run_hostile` for what a program must not do."""

from tailrace.reward.sandbox.testing.contract import check_sandbox
from tailrace.reward.sandbox.testing.hostile import HOSTILE, HostileOutcome, HostileProgram, run_hostile

__all__ = ["HOSTILE", "HostileOutcome", "HostileProgram", "check_sandbox", "run_hostile"]
