"""The command line. Commands import what they need when they run, so that ``--help`` answers at once.

Exit status: 0 done; 1 the run itself failed; 2 something about the command, the configuration or a file is wrong; 130
interrupted. An error is one line on stderr; ``TAILRACE_DEBUG=1`` shows where it came from.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from tailrace.cli import run_commands, simulated_commands
from tailrace.cli.app import app
from tailrace.cli.complaints import complain, lines_of, one_line, show_source
from tailrace.contracts import TailraceError

COMMANDS = (run_commands, simulated_commands)  # each adds its own when it is imported
UsageError: type[Exception] = typer.BadParameter.__mro__[
    1
]  # typer carries its own copy of click, whose names are private


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status."""
    try:
        status = app(list(arguments) if arguments is not None else None, prog_name="tailrace", standalone_mode=False)
    except UsageError as error:
        show_source()
        return _usage(error)
    except typer.Abort:
        return complain("interrupted", status=130)
    except (TailraceError, OSError) as error:
        show_source()
        return max(complain(line) for line in lines_of(error))
    return status if isinstance(status, int) else 0


def _usage(error: Any) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return 2
    where = error.ctx.command_path if error.ctx is not None else "tailrace"
    return complain(f"{one_line(error.format_message()).rstrip('.')}; see {where} --help")


if __name__ == "__main__":
    sys.exit(main())
