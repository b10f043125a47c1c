"""Code by hidden tests: rows of tests, the harness that runs them in a sandbox, and the comparison outside of it."""

from tailrace.reward.code.rows import CodeTests, read_tests
from tailrace.reward.code.scoring import CodeRun, run_tests
from tailrace.reward.errors import CodeRowError, SandboxFailedError
from tailrace.reward.extraction import program_in

__all__ = ["CodeRowError", "CodeRun", "CodeTests", "SandboxFailedError", "program_in", "read_tests", "run_tests"]
