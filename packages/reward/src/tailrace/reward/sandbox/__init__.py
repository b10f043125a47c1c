"""Sandboxes: each runs one untrusted Python program at a time under limits, and says how that ended."""

from tailrace.reward.errors import NoSandboxError
from tailrace.reward.sandbox.protocol import DEFAULT_LIMITS, Limits, ProgramRun, RunVerdict, Sandbox
from tailrace.reward.sandbox.select import sandbox_names, select_sandbox

__all__ = [
    "DEFAULT_LIMITS",
    "Limits",
    "NoSandboxError",
    "ProgramRun",
    "RunVerdict",
    "Sandbox",
    "sandbox_names",
    "select_sandbox",
]
