"""A paper's free parameters and the targets that they were chosen on: its ``parameters.toml``, as a model."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any

from tailrace.fleetsim.errors import ReproductionError


@dataclass(frozen=True, slots=True)
class Parameter:
    """A free parameter.

    Args:
        name: a dotted key of the systems' tables, with the model in front where each has its own.
        low, high: what is plausible.
        source: why.
    """

    name: str
    value: float
    low: float
    high: float
    source: str
    fitted: bool


class Parameters:
    """What was chosen for a paper, and on what.

    Args:
        package: the one that holds ``parameters.toml``.
    """

    def __init__(self, package: str) -> None:
        self._package = package
        self._trial: dict[str, float] = {}

    @cached_property
    def _content(self) -> dict[str, Any]:
        return tomllib.loads(resources.files(self._package).joinpath("parameters.toml").read_text(encoding="utf-8"))

    @cached_property
    def known(self) -> dict[str, Parameter]:
        """All of them by name.

        Raises:
            ReproductionError: a value is outside of what is plausible, or a name stands there twice.
        """
        found = [Parameter(**entry) for entry in self._content.get("parameter", ())]
        for one in found:
            if not one.low <= one.value <= one.high:
                raise ReproductionError(
                    f"parameter {one.name}: found {one.value:g}, expected a value from {one.low:g} to {one.high:g}"
                )
        known = {one.name: one for one in found}
        if len(known) < len(found):
            raise ReproductionError(f"{self._package}: found {len(found) - len(known)} parameters twice")
        return known

    @cached_property
    def fitted_on(self) -> tuple[str, ...]:
        """Ids of targets."""
        return tuple(self._content["fitted_on"])

    def value(self, name: str) -> float:
        """A parameter's value.

        Raises:
            ReproductionError: there is none of this name.
        """
        if name in self._trial:
            return self._trial[name]
        if name not in self.known:
            raise ReproductionError(f"found no parameter {name!r} in {self._package}, expected one")
        return self.known[name].value

    @contextmanager
    def trial(self, changes: Mapping[str, float]) -> Iterator[None]:
        """Give parameters other values inside the block: for a search.

        Raises:
            ReproductionError: there is none of such a name.
        """
        for name in changes:
            self.value(name)
        self._trial = dict(changes)
        try:
            yield
        finally:
            self._trial = {}
