"""Chooses a sandbox: by name, or the first that works on this machine."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

from tailrace.reward.errors import NoSandboxError
from tailrace.reward.sandbox.modules import module_files
from tailrace.reward.sandbox.probe import Probe, probe
from tailrace.reward.sandbox.protocol import Sandbox

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
