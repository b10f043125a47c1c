"""Installed modules that programs may import besides the standard library: where they lie, and what they need."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

from tailrace.reward.errors import NoSandboxError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@cache
def module_files(names: tuple[str, ...]) -> dict[str, str]:
    """The files and directories of modules, and of all that their distributions require and is installed.

    Args:
        names: modules as they are imported, such as ``numpy``. Those of the standard library are there without.

    Returns:
        Paths by the name that is imported, or by the file's own where nothing imports it.

    Raises:
        NoSandboxError: one is not installed, or lies in no directory of installed modules.
    """
    found: dict[str, str] = {}
    owners = packages_distributions() if names else {}
    for name in names:
        if name in sys.stdlib_module_names:
            continue
        if name not in owners:
            raise NoSandboxError(f"found the module {name!r}, expected one that is installed here")
        for owner in owners[name]:
            for needed in _needed(distribution(owner)):
                found |= _entries(needed)
        if name not in found:
            raise NoSandboxError(
                f"found the module {name!r}, which is installed in place, expected a copy in site-packages"
            )
    return found


def _needed(first: Distribution) -> Iterator[Distribution]:
    """A distribution and all that it requires without extras, as far as it is installed."""
    waiting, seen = [first], {first.metadata["Name"].lower()}
    while waiting:
        yield (here := waiting.pop())
        for line in here.requires or ():
            required = _NAME.match(line)
            if required is None or "extra ==" in line or required[0].lower() in seen:
                continue
            seen.add(required[0].lower())
            try:
                waiting.append(distribution(required[0]))
            except PackageNotFoundError:  # for another platform or Python
                continue


def _entries(installed: Distribution) -> dict[str, str]:
    tops = {file.parts[0] for file in installed.files or ()}
    found = {}
    for top in sorted(tops):
        path = Path(str(installed.locate_file(top))).resolve()
        if top not in ("..", "__pycache__") and not top.endswith((".dist-info", ".egg-info", ".pth")) and path.exists():
            found[top if path.is_dir() else top.partition(".")[0]] = str(path)
    return found
