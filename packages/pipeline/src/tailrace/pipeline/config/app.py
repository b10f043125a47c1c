"""Apps: each has a name, defaults and a quick start, and registers in the entry-point group ``tailrace.app``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tailrace.pipeline.config.loading import merge


@dataclass(frozen=True, slots=True)
class App:
    """A recipe: which policies, roles and defaults make up a system.

    Args:
        name: the name in ``tailrace run NAME`` and ``app = "NAME"``.
        paper: the paper that it implements.
        package: the package with ``defaults.toml`` (the axes) and ``quickstart.toml`` (the changes for a small run).
    """

    name: str
    paper: str
    package: str

    def defaults(self) -> dict[str, Any]:
        """The app's choice on each axis, and other defaults."""
        return _read(self.package, "defaults.toml")

    def quickstart(self) -> dict[str, Any]:
        """Settings of a run that needs no GPU and no download."""
        return merge(_read("tailrace.pipeline.config", "small.toml"), _read(self.package, "quickstart.toml"))


def _read(package: str, name: str) -> dict[str, Any]:
    return tomllib.loads(files(package).joinpath(name).read_text())
