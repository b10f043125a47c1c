"""The command line. Commands import what they need when they run, so that ``--help`` answers at once.

Exit status: 0 done; 1 the run itself failed; 2 something about the command, the configuration or a file is wrong; 130
interrupted. An error is one line on stderr; ``TAILRACE_DEBUG=1`` shows where it came from. What nobody reads any more, as
behind ``| head``, is dropped, and the command goes on.
"""

from __future__ import annotations

import errno
import functools
import io
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import typer

from tailrace.cli.app import app
from tailrace.cli.components import commands as component_commands
from tailrace.cli.errors import DEBUG, FAILED, INTERRUPTED, WRONG, complain, lines_of, one_line, show_source
from tailrace.cli.runs import commands as run_commands
from tailrace.cli.simulations import commands as simulation_commands
from tailrace.contracts import TailraceError

# Each adds its own when it is imported; help has them in this order.
COMMANDS = (run_commands, simulation_commands, component_commands)
_PLACES = {each.__name__: place for place, each in enumerate(COMMANDS)}
app.registered_commands.sort(key=lambda command: _PLACES[getattr(command.callback, "__module__", "")])
UsageError: type[Exception] = typer.BadParameter.__mro__[
    1
]  # typer carries its own copy of click, whose names are private


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit status."""
    if arguments is not None or sys.stdout is not sys.__stdout__:
        return _run(arguments)
    with _unread() as streams:
        status = _run(arguments)
    for stream in streams:
        if stream.lost is not None:
            status = complain(
                f"{stream.named}: {stream.lost.strerror}; what was printed is not whole", status=status or WRONG
            )
    return status


@functools.cache
def _command() -> Any:
    """The command of all commands, which takes as long to make as most of them take to be refused."""
    return typer.main.get_command(app)


def _run(arguments: Sequence[str] | None) -> int:
    try:
        given = list(arguments) if arguments is not None else None
        status = _command()(given, prog_name="tailrace", standalone_mode=False)
    except UsageError as error:
        show_source()
        return _usage(error, list(arguments if arguments is not None else sys.argv[1:]))
    except (typer.Abort, KeyboardInterrupt):
        return complain("interrupted", status=INTERRUPTED)
    except (TailraceError, OSError) as error:
        show_source()
        return max(complain(line) for line in lines_of(error))
    except Exception as error:
        show_source()
        if isinstance(error.__cause__, KeyboardInterrupt):  # Python 3.11 makes another error of it in a class's body
            return complain("interrupted", status=INTERRUPTED)
        where = traceback.extract_tb(error.__traceback__)[-1]
        return complain(
            f"a fault of Tailrace itself: {type(error).__name__}: {one_line(error)} ({where.filename}:{where.lineno}); "
            f"{DEBUG}=1 shows the traceback",
            status=FAILED,
        )
    return status if isinstance(status, int) else 0


_GONE = frozenset({errno.EPIPE, errno.EIO})  # the other end of a pipe; a terminal


class _Stream(io.FileIO):
    """A standard stream whose reader may go, and whose disk may be full: what it does not take is dropped.

    `lost` is why, unless the reader went: it has read what it wanted.
    """

    def __init__(self, number: int, named: str) -> None:
        super().__init__(number, "wb", closefd=False)
        self.named = named
        self.lost: OSError | None = None

    def write(self, data: Any, /) -> int:
        """Write, or drop."""
        try:
            return super().write(data)
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno in _GONE:
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, self.fileno())  # what others print to it is dropped too
                os.close(nothing)
            else:
                self.lost = error
            return memoryview(data).nbytes


@contextmanager
def _unread() -> Iterator[list[_Stream]]:
    """Standard streams that never raise, to the end of the process: Python flushes them once more when it ends."""
    streams = []
    for name in ("stdout", "stderr"):
        old = getattr(sys, name)
        if old is None:  # it was closed before this program began
            continue
        old.flush()
        streams.append(_Stream(old.fileno(), name))
        text = io.TextIOWrapper(
            io.BufferedWriter(streams[-1]),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=old.line_buffering or old.write_through,
        )
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    try:
        yield streams
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()


def _usage(error: Any, words: Sequence[str]) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return WRONG
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
