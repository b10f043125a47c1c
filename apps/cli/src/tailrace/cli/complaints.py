"""What a person is told when something went wrong: one line."""

from __future__ import annotations

import sys

DEBUG = "TAILRACE_DEBUG"
"""With this in the environment, the line is followed by where the error came from."""


def complain(message: str, *, status: int = 2) -> int:
    """One line on stderr; returns the exit status."""
    print(f"tailrace: {message}", file=sys.stderr)
    return status


def one_line(error: BaseException | str) -> str:
    """What went wrong, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
