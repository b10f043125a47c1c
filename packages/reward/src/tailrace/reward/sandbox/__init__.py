"""Sandboxes: each runs one untrusted Python program at a time under limits, and says how that ended."""

from tailrace.reward.errors import NoSandboxError
from tailrace.reward.sandbox.limits import DEFAULT_LIMITS, Limits
from tailrace.reward.sandbox.protocol import ProgramRun, RunVerdict, Sandbox
from tailrace.reward.sandbox.select import AUTOMATIC, Probe, probe_sandbox, sandbox_names, select_sandbox

__all__ = [
    "AUTOMATIC",
    "DEFAULT_LIMITS",
    "Limits",
    "NoSandboxError",
    "Probe",
    "ProgramRun",
    "RunVerdict",
    "Sandbox",
    "probe_sandbox",
    "sandbox_names",
    "select_sandbox",
]
