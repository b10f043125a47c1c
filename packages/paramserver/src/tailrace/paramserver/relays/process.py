"""A relay in its own process, so that it survives crashes of the trainer and of replicas, and they survive its."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE

from tailrace.paramserver.errors import RelayStartFailed, from_wire
from tailrace.paramserver.machine.segments import clear, living_owner
from tailrace.paramserver.relays.server import SLOT_TIMEOUT_S, STALL_S
from tailrace.paramserver.wire.authentication import TOKEN_VARIABLE, check_token
from tailrace.processes import Child, ChildEndedError, ChildTimeoutError, LineError

_CLOSE_S = 15.0
_MODULE = "tailrace.paramserver.relay"


class RelayProcess:
    """A relay process that this process started. It ends when this process does. Make one with `start`."""

    def __init__(self, name: str, child: Child, address: str, cleaned: list[str]) -> None:
        self.name, self.address, self.cleaned = name, address, cleaned
        self._child = child

    @classmethod
    def start(
        cls,
        name: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str,
        slots: int = 2,
        max_bytes: int | None = None,
        slot_timeout_s: float = SLOT_TIMEOUT_S,
        stall_s: float = STALL_S,
        transports: Sequence[str] | None = None,
        codecs: Sequence[str] | None = None,
        always_encode: bool = False,
        known_as: Sequence[str] = (),
        pullers: int | None = None,
        timeout_s: float = 30.0,
        replace: bool = False,
    ) -> RelayProcess:
        """Start a relay and wait until it serves. The other arguments are those of `RelayServer`.

        Args:
            replace: kill a living relay of this name first: one that was suspended, so that it outlived who started it.

        Raises:
            PortInUse, RelayNameTaken: see their messages.
            RelayStartFailed: it ended, or did not serve within `timeout_s`.
        """
        if replace:
            _kill_namesake(name)
        command = [sys.executable, "-m", _MODULE, f"--name={name}", "--host", host]
        command += ["--port", str(port), "--slots", str(slots), "--parent-pid", str(os.getpid())]
        command += ["--slot-timeout-s", str(slot_timeout_s), "--stall-s", str(stall_s)]
        if transports is not None:
            command += ["--transports", ",".join(transports)]
        if codecs is not None:
            command += ["--codecs", ",".join(codecs)]
        if always_encode:
            command += ["--always-encode"]
        if known_as:
            command += ["--known-as", ",".join(known_as)]
        if pullers is not None:
            command += ["--pullers", str(pullers)]
        if max_bytes is not None:
            command += ["--max-bytes", str(max_bytes)]
        environment = {key: value for key, value in os.environ.items() if key != TOKEN_VARIABLE}
        child = Child(command, stdin=PIPE, stdout=PIPE, environment=environment)
        try:
            child.send(check_token(token).strip().encode() + b"\n", timeout_s)
            child.hang_up()
            answer = child.receive(timeout_s)
            if "error" in answer:
                raise from_wire(answer) if answer["error"] else RelayStartFailed(str(answer["message"]))
        except LineError as error:  # it lives, and what it says is not for us
            child.kill()
            raise RelayStartFailed(f"relay {name!r} printed what is no answer: {error}; see its stderr") from None
        except ChildTimeoutError:
            child.kill()
            raise RelayStartFailed(f"relay {name!r} did not serve within {timeout_s:.3g} s") from None
        except ChildEndedError:
            status = child.wait(_CLOSE_S)
            child.kill()
            raise RelayStartFailed(
                f"relay {name!r} ended with status {status} before it served; see its stderr"
            ) from None
        except BaseException:
            child.kill()
            raise
        return cls(name, child, answer["address"], answer["cleaned"])

    @staticmethod
    def clear(name: str, *, kill: bool = False) -> list[str]:
        """Free the shared memory that a dead relay of this name left on this host.

        Args:
            kill: kill one that lives first.

        Returns:
            The names of what was freed.

        Raises:
            RelayNameTaken: one of the name lives.
        """
        if kill:
            _kill_namesake(name)
        return clear(name)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._child.poll() is None

    def kill(self) -> None:
        """SIGKILL, as a crash would. Its shared memory stays until `clear`, or until a relay of the same name starts."""
        self._child.kill()

    def close(self) -> None:
        """Stop it and remove its shared memory; kill it if it does not stop in time."""
        self._child.end(_CLOSE_S)

    def __enter__(self) -> RelayProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _kill_namesake(name: str) -> None:
    """End an old relay of the name. If it is uncertain whose process it is, it is not ended; then the name is taken."""
    found = living_owner(name)
    if found is not None and _is_relay(found.pid, name) and found.kill():
        deadline = time.monotonic() + _CLOSE_S
        while found.alive() and time.monotonic() < deadline:
            time.sleep(0.01)


def _is_relay(pid: int, name: str) -> bool:
    """Whether a process is this user's and runs a relay of the name, and nothing else."""
    process = Path("/proc", str(pid))
    try:
        arguments = (process / "cmdline").read_bytes().split(b"\0")
        ours = process.stat().st_uid == os.getuid()
    except OSError:  # it has ended, or this system does not tell
        return False
    named = os.fsencode(name)
    return ours and any(
        _contains(arguments, [b"-m", _MODULE.encode(), *form]) for form in ([b"--name=" + named], [b"--name", named])
    )


def _contains(words: Sequence[bytes], part: Sequence[bytes]) -> bool:
    return any(words[at : at + len(part)] == part for at in range(len(words)))
