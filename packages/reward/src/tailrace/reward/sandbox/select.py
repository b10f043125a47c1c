"""Chooses a sandbox: by name, or the first that works on this machine."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from tailrace.reward.errors import NoSandboxError
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


def select_sandbox(name: str = "auto") -> Sandbox:
    """A sandbox that works, as a program in it has just shown.

    Args:
        name: a registered backend, ``name:argument`` for one that takes an argument (``sandbox-fusion:http://host:8080``), or
            ``auto`` for the first of `AUTOMATIC` that works.

    Raises:
        NoSandboxError: none works here, or the named one does not, or no sandbox has this name.
    """
    probes: dict[str, Probe] = {}
    for candidate in AUTOMATIC if name == "auto" else (name,):
        probes[candidate] = probe_sandbox(candidate)
        if probes[candidate].works:
            return _make(candidate)
    found = "; ".join(f"{candidate}: {result.reason}" for candidate, result in probes.items())
    raise NoSandboxError(f"no sandbox works here: {found}; {_REMEDY}")


def probe_sandbox(name: str) -> Probe:
    """Whether this sandbox works here; it takes about half a second.

    Raises:
        NoSandboxError: no sandbox has this name.
    """
    _entry(name)
    return probe(lambda: _make(name))


def _registered() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


def _entry(name: str) -> EntryPoint:
    registered = _registered()
    kind = name.partition(":")[0]
    if kind not in registered:
        raise NoSandboxError(f"found the sandbox {name!r}, expected auto, {', '.join(sorted(registered))}")
    return registered[kind]


def _make(name: str) -> Sandbox:
    factory, (_, colon, argument) = _entry(name).load(), name.partition(":")
    made: Sandbox = factory(argument) if colon else factory()
    return made
