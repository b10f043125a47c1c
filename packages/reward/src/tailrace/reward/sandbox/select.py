"""Chooses a sandbox: by name, or the first that works on this machine.

Whether one works is tried: a program runs in it that tries to get out.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from tailrace.reward.errors import NoSandboxError
from tailrace.reward.sandbox.interpreter import module_files
from tailrace.reward.sandbox.limits import Limits
from tailrace.reward.sandbox.protocol import RunVerdict, Sandbox

_LIMITS = Limits(cpu_s=5, wall_s=20)
# Prints which of its attempts failed, as they should. What it needs stands in its first line, as JSON.
_PROGRAM = """\
import json, os, socket
given = json.loads({given!r})
def refused(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False
def tcp():
    socket.create_connection(("127.0.0.1", given["tcp"]), timeout=2).close()
def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        made.sendto(given["word"].encode(), ("127.0.0.1", given["udp"]))
def read():
    open(given["file"]).read()
def write():
    open(given["file"], "w").close()
def signal():
    os.kill(given["pid"], 0)
print(json.dumps({{
    "no TCP": refused(tcp), "no UDP": refused(udp), "no host files": refused(read) and refused(write),
    "no signals out": refused(signal), "no environment": given["variable"] not in os.environ,
}}))
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """What was found of one sandbox.

    Args:
        works: it ran the program, and the program got nowhere.
        reason: why it does not work, in one line; empty if it does.
        facts: each thing that must hold, and whether it did.
    """

    works: bool
    reason: str = ""
    facts: dict[str, bool] = field(default_factory=dict)


def probe(make: Callable[[], Sandbox], modules: Sequence[str] = ()) -> Probe:
    """Probe the sandbox that `make` returns, in a thread with an event loop of its own; programs are to import modules."""
    found: list[Probe] = []
    thread = threading.Thread(
        target=lambda: found.append(asyncio.run(_probe(make, modules))), name="tailrace-probe", daemon=True
    )
    thread.start()
    thread.join(_LIMITS.wall_s * 3)
    return found[0] if found else Probe(False, "the probe did not end")


async def _probe(make: Callable[[], Sandbox], modules: Sequence[str]) -> Probe:
    try:
        sandbox = make()
    except NoSandboxError as error:
        return Probe(False, str(error))
    try:
        with _bait() as (given, caught):
            run = await sandbox.run(_PROGRAM.format(given=json.dumps(given)), limits=_LIMITS)
            reached = caught()
        imports = None
        if modules and run.verdict is RunVerdict.OK:
            imports = await sandbox.run(f"import {', '.join(modules)}", limits=_LIMITS)
    except OSError as error:
        return Probe(False, f"the probe could not be set up: {error}")
    finally:
        await sandbox.close()
    if run.verdict is not RunVerdict.OK:
        last = run.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        return Probe(False, run.reason or f"a harmless program ended with {run.verdict}: {last[0]:.200}")
    if imports is not None and imports.verdict is not RunVerdict.OK:
        last = imports.stderr.decode(errors="replace").strip().splitlines()[-1:] or [
            imports.reason or str(imports.limit)
        ]
        return Probe(False, f"a program cannot import {', '.join(modules)}: {last[0]:.200}")
    facts = json.loads(run.stdout)
    facts["no TCP"] = facts["no TCP"] and "tcp" not in reached
    facts["no UDP"] = facts["no UDP"] and "udp" not in reached
    broken = [fact for fact, holds in facts.items() if not holds]
    return Probe(not broken, f"a program broke out: {', '.join(broken)} does not hold" if broken else "", facts)


@contextlib.contextmanager
def _bait() -> Iterator[tuple[dict[str, object], Callable[[], set[str]]]]:
    """A file, two sockets and an environment variable of this process, for a program to find."""
    word = secrets.token_hex(8)
    variable = f"TAILRACE_PROBE_{word}"
    with (
        tempfile.NamedTemporaryFile("w") as file,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
    ):
        Path(file.name).chmod(0o666)
        udp.bind(("127.0.0.1", 0))
        tcp.setblocking(False)
        udp.setblocking(False)
        os.environ[variable] = word

        def caught() -> set[str]:
            found = set()
            with contextlib.suppress(BlockingIOError):
                tcp.accept()[0].close()
                found.add("tcp")
            with contextlib.suppress(BlockingIOError):
                udp.recv(64)
                found.add("udp")
            return found

        given = {"word": word, "variable": variable, "file": file.name, "pid": os.getpid()}
        try:
            yield given | {"tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1]}, caught
        finally:
            del os.environ[variable]


GROUP = "tailrace.sandbox"
AUTOMATIC = ("sandlock", "bubblewrap")
"""The names that ``auto`` tries, in this order."""
_REMEDY = (
    "install a backend (pip install 'tailrace-reward[sandbox]', Linux 6.12 or newer; or bubblewrap, where user namespaces are"
    " allowed) or name a sandbox-fusion:URL; programs never run unprotected"
)


def sandbox_names() -> list[str]:
    """The registered backends."""
    return sorted(_registered())


def select_sandbox(name: str = "auto", modules: Sequence[str] = ()) -> Sandbox:
    """A sandbox that works, as a program in it has just shown.

    Args:
        name: a registered backend, ``name:argument`` for one that takes an argument (``sandbox-fusion:http://host:8080``), or
            ``auto`` for the first of `AUTOMATIC` that works.
        modules: installed modules that programs may import besides the standard library, such as ``numpy``.

    Raises:
        NoSandboxError: none works here, or the named one does not, no sandbox has this name, or a module cannot be imported.
    """
    module_files(tuple(modules))  # to say what is wrong with them first
    probes: dict[str, Probe] = {}
    for candidate in AUTOMATIC if name == "auto" else (name,):
        probes[candidate] = probe_sandbox(candidate, modules)
        if probes[candidate].works:
            return _make(candidate, modules)
    found = "; ".join(f"{candidate}: {result.reason}" for candidate, result in probes.items())
    raise NoSandboxError(f"no sandbox works here: {found}; {_REMEDY}")


def probe_sandbox(name: str, modules: Sequence[str] = ()) -> Probe:
    """Whether this sandbox works here and programs can import these modules; it takes about half a second.

    Raises:
        NoSandboxError: no sandbox has this name.
    """
    _entry(name)
    return probe(lambda: _make(name, modules), modules)


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _entry(name: str) -> EntryPoint:
    registered = _registered()
    kind = name.partition(":")[0]
    if kind not in registered:
        raise NoSandboxError(f"found the sandbox {name!r}, expected auto, {', '.join(sorted(registered))}")
    return registered[kind]


def _make(name: str, modules: Sequence[str]) -> Sandbox:
    factory, (_, colon, argument) = _entry(name).load(), name.partition(":")
    if modules and "modules" not in inspect.signature(factory).parameters:
        raise NoSandboxError(f"the sandbox {name!r} has modules of its own, expected to be asked for none")
    made: Sandbox = factory(*([argument] if colon else []), **({"modules": modules} if modules else {}))
    return made
