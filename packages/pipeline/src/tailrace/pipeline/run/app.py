"""What an app is: a name, its defaults and its quick start. Apps register in the entry-point group ``tailrace.app``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class App:
    """A recipe: which policies, which roles, which defaults.

    Args:
        name: as in ``tailrace run NAME`` and ``app = "NAME"``.
        paper: what it implements.
        package: the package that holds ``defaults.toml`` (the axes) and ``quickstart.toml`` (a whole small run).
    """

    name: str
    paper: str
    package: str

    def defaults(self) -> dict[str, Any]:
        """The app's point in the space of axes."""
        return self._read("defaults.toml")

    def quickstart(self) -> dict[str, Any]:
        """A run that needs no GPU and no download."""
        return self._read("quickstart.toml")

    def _read(self, name: str) -> dict[str, Any]:
        return tomllib.loads(files(self.package).joinpath(name).read_text())
