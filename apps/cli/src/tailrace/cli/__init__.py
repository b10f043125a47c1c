"""Tailrace on the command line: run, resume and watch reinforcement-learning post-training of language models."""

from __future__ import annotations

__version__ = "0.1.0"


def command() -> int:
    """The program ``tailrace``. Ctrl-C is one line from the first moment on, while commands are imported too."""
    try:
        from tailrace.cli.main import main

        return main()
    except (KeyboardInterrupt, RuntimeError) as error:
        if not isinstance(error.__cause__ or error, KeyboardInterrupt):  # Python 3.11 wraps it in a class's body
            raise
        import sys

        from tailrace.cli.errors import INTERRUPTED

        print("tailrace: interrupted", file=sys.stderr)
        return INTERRUPTED
