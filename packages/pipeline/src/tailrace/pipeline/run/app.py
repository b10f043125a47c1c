"""What an app is: a name, its defaults and its quick start. Apps register in the entry-point group ``tailrace.app``."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tailrace.pipeline.config.loading import merge


@dataclass(frozen=True, slots=True)
class App:
    """A recipe: which policies, which roles, which defaults.

    Args:
        name: as in ``tailrace run NAME`` and ``app = "NAME"``.
        paper: what it implements.
        package: the package that holds ``defaults.toml`` (the axes) and ``quickstart.toml`` (what a small run changes).
    """

    name: str
    paper: str
    package: str

    def defaults(self) -> dict[str, Any]:
        """The app's point in the space of axes."""
        return _read(self.package, "defaults.toml")

    def quickstart(self) -> dict[str, Any]:
        """A run that needs no GPU and no download."""
        return merge(_read("tailrace.pipeline.config", "small.toml"), _read(self.package, "quickstart.toml"))


def _read(package: str, name: str) -> dict[str, Any]:
    return tomllib.loads(files(package).joinpath(name).read_text())
