"""The command line. Commands import what they need when they run, so that ``--help`` answers at once.

Exit status: 0 done; 1 the run itself failed; 2 something about the command, the configuration or a file is wrong; 130
interrupted. An error is one line on stderr; ``TAILRACE_DEBUG=1`` shows where it came from.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import typer

from tailrace.cli import (
    audit_commands,
    chaos_commands,
    judge_commands,
    plugin_commands,
    rank_commands,
    run_commands,
    sandbox_commands,
    serve_commands,
    simulated_commands,
)
from tailrace.cli.app import app
from tailrace.cli.complaints import DEBUG, complain, lines_of, one_line, show_source
from tailrace.contracts import TailraceError

# Each adds its own when it is imported.
COMMANDS = (
    run_commands,
    simulated_commands,
    rank_commands,
    plugin_commands,
    judge_commands,
    sandbox_commands,
    serve_commands,
    chaos_commands,
    audit_commands,
)
UsageError: type[Exception] = typer.BadParameter.__mro__[
    1
]  # typer carries its own copy of click, whose names are private


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status."""
    try:
        status = app(list(arguments) if arguments is not None else None, prog_name="tailrace", standalone_mode=False)
    except UsageError as error:
        show_source()
        return _usage(error, list(arguments if arguments is not None else sys.argv[1:]))
    except typer.Abort:
        return complain("interrupted", status=130)
    except (TailraceError, OSError) as error:
        show_source()
        return max(complain(line) for line in lines_of(error))
    except Exception as error:
        show_source()
        where = traceback.extract_tb(error.__traceback__)[-1]
        return complain(
            f"a fault of Tailrace itself: {type(error).__name__}: {one_line(error)} ({where.filename}:{where.lineno}); "
            f"{DEBUG}=1 shows the traceback",
            status=1,
        )
    return status if isinstance(status, int) else 0


def _usage(error: Any, words: Sequence[str]) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    where = error.ctx.command_path if error.ctx is not None else "tailrace"
    return complain(f"{one_line(error.format_message()).rstrip('.')}{_found(error, words)}; see {where} --help")


def _found(error: Any, words: Sequence[str]) -> str:
    """The value that an option refuses, which its own message does not always have."""
    names = getattr(getattr(error, "param", None), "opts", ())
    for name, value in pairwise(words):
        if name in names and isinstance(error, typer.BadParameter):
            return f": found {value!r}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
