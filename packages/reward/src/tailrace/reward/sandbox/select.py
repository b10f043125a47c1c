"""Chooses a sandbox: by name, or the first that works on this machine."""

from __future__ import annotations

from importlib.metadata import entry_points

from tailrace.reward.errors import NoSandboxError
from tailrace.reward.sandbox.protocol import Sandbox

GROUP = "tailrace.sandbox"
AUTOMATIC = ("sandlock", "bubblewrap")
"""The names that ``auto`` tries, in this order."""


def sandbox_names() -> list[str]:
    """The registered backends."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def select_sandbox(name: str = "auto") -> Sandbox:
    """The named sandbox, or with ``auto`` the first of `AUTOMATIC` that works here.

    Raises:
        NoSandboxError: none works here, or the named one does not, or no sandbox has this name.
    """
    if name != "auto":
        return _load(name)
    probes: dict[str, str] = {}
    for candidate in AUTOMATIC:
        try:
            return _load(candidate)
        except NoSandboxError as error:
            probes[candidate] = str(error)
    raise NoSandboxError("no sandbox works here: " + "; ".join(f"{key}: {value}" for key, value in probes.items()))


def _load(name: str) -> Sandbox:
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        raise NoSandboxError(f"found the sandbox {name!r}, expected auto, {', '.join(sorted(found))}")
    sandbox: Sandbox = found[name].load()()
    return sandbox
