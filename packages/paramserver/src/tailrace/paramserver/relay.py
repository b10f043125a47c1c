"""``python -m tailrace.paramserver.relay``: one relay in its own process.

The token comes from the environment variable TAILRACE_RELAY_TOKEN or from the first line of standard input, never from
the command line, where every user of the host could read it. The first line of standard output is a JSON object: the
address and pid once the relay serves, or why it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tailrace.paramserver.errors import ParamServerError, RelayNameTaken, to_wire
from tailrace.paramserver.machine.segments import clear, is_left
from tailrace.paramserver.relays.server import SLOT_TIMEOUT_S, STALL_S, RelayServer
from tailrace.paramserver.wire.authentication import TOKEN_VARIABLE
from tailrace.processes import Ending, ProcessId, wait_for_parent

_POLL_S = 0.5
_SOON_S = 0.01


def leave_janitor(relay: str, parent: int) -> None:
    """Fork a janitor, which frees the relay's shared memory when relay and starter were both killed.

    Whoever starts a relay clears up after it, and a relay clears up when its starter dies. If a SIGKILL ends both (a scheduler
    that ends a job, Ray, which kills the children of a worker that it ends), only a third process is left to do it. Call it in
    the relay's process, before that has threads.

    Args:
        relay: the relay's name.
        parent: process id of the relay's starter.
    """
    starter, own = ProcessId.of(parent), ProcessId.current()
    ends_with_us, ready = os.pipe(), os.pipe()
    if os.fork():
        os.close(ends_with_us[0])  # the other end closes with this process, however it ends
        os.close(ready[1])
        os.read(ready[0], 1)  # signals to this process and its group do not reach the janitor any more
        os.close(ready[0])
        return
    try:
        os.close(ends_with_us[1])
        _hide()
        os.close(ready[1])
        os.read(ends_with_us[0], 1)
        _wait_and_clear(relay, own, starter)
    finally:
        os._exit(0)


def _hide() -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)


def _wait_and_clear(relay: str, own: ProcessId, starter: ProcessId) -> None:
    while own.alive():  # its files close a little before it is gone
        time.sleep(_SOON_S)
    while is_left(relay) and starter.alive():  # the starter, if it lives, may look at what is left, or free it
        time.sleep(_POLL_S)
    try:
        clear(relay)
    except RelayNameTaken:  # its next incarnation, which freed what was left
        return


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until SIGTERM, SIGINT or the parent's death. Returns the exit status."""
    options = _parser().parse_args(arguments)
    token = os.environ.pop(TOKEN_VARIABLE, "") or sys.stdin.readline().strip()
    if options.parent_pid is not None:
        leave_janitor(options.name, options.parent_pid)
    stop = Ending()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.ask)
    try:
        server = RelayServer(
            options.name,
            host=options.host,
            port=options.port,
            token=token,
            slots=options.slots,
            max_bytes=options.max_bytes,
            slot_timeout_s=options.slot_timeout_s,
            stall_s=options.stall_s,
            transports=_names(options.transports),
            codecs=_names(options.codecs),
            always_encode=options.always_encode,
            known_as=_names(options.known_as) or (),
            pullers=options.pullers,
        )
    except (ParamServerError, ValueError) as error:
        _say(to_wire(error) if isinstance(error, ParamServerError) else {"error": "", "message": str(error)})
        return 1
    with server:
        _say({"address": server.address, "pid": os.getpid(), "cleaned": server.cleaned})
        if options.parent_pid is None:
            stop.wait()
        else:
            wait_for_parent(options.parent_pid, stop)
    return 0


def _say(message: dict[str, object] | dict[str, str]) -> None:
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:  # who started it died meanwhile, which ends this process too
        with Path(os.devnull).open("wb") as nothing:
            os.dup2(nothing.fileno(), sys.stdout.fileno())  # or Python complains at exit of what it could not write


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name for name in text.split(",") if name]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tailrace.paramserver.relay", description=__doc__)
    parser.add_argument("--name", required=True, help="unique among your relays on this host")
    parser.add_argument("--host", default="127.0.0.1", help="interface to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--slots", type=int, default=2, help="versions held at once, 2 to 16")
    parser.add_argument("--max-bytes", type=int, default=None, help="largest version to accept")
    parser.add_argument("--slot-timeout-s", type=float, default=SLOT_TIMEOUT_S, help="longest wait for readers")
    parser.add_argument("--stall-s", type=float, default=STALL_S, help="longest time without progress in a transfer")
    parser.add_argument("--transports", default=None, help="for chunks, best first, by comma; '' for none but TCP")
    parser.add_argument("--codecs", default=None, help="to use where they are faster, by comma; '' for none")
    parser.add_argument("--always-encode", action="store_true", help="use codecs where they are slower, too")
    parser.add_argument("--known-as", default="", help="addresses of proxies through which it is dialled, by comma")
    parser.add_argument(
        "--pullers", type=int, default=None, help="most that pull over the network at once; others wait"
    )
    parser.add_argument("--parent-pid", type=int, default=None, help="exit when this parent process is gone")
    return parser


if __name__ == "__main__":
    sys.exit(main())
