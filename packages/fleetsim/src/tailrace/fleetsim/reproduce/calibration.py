"""The free parameters and the targets that they were chosen on: ``calibration.toml``, as a model."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
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


@dataclass(frozen=True, slots=True)
class Calibration:
    """A paper's free parameters. Everything that is not in `fitted_on` is held out."""

    parameters: tuple[Parameter, ...]
    fitted_on: tuple[str, ...]


def calibration(paper: str) -> Calibration:
    """What was chosen for a paper, and on what.

    Raises:
        ReproductionError: a value is outside of what is plausible.
    """
    text = resources.files(__package__).joinpath("calibration.toml").read_text(encoding="utf-8")
    content: dict[str, Any] = tomllib.loads(text)[paper]
    parameters = tuple(Parameter(**entry) for entry in content.get("parameter", ()))
    for one in parameters:
        if not one.low <= one.value <= one.high:
            raise ReproductionError(
                f"parameter {one.name}: found {one.value:g}, expected a value from {one.low:g} to {one.high:g}"
            )
    return Calibration(parameters, tuple(content["fitted_on"]))


_trial: dict[tuple[str, str], float] = {}


@contextmanager
def trial(paper: str, changes: Mapping[str, float]) -> Iterator[None]:
    """Within this, parameters have other values: for a search.

    Raises:
        ReproductionError: there is none of such a name.
    """
    for name in changes:
        value(paper, name)
    _trial.update({(paper, name): number for name, number in changes.items()})
    try:
        yield
    finally:
        _trial.clear()


def value(paper: str, name: str) -> float:
    """A parameter's value.

    Raises:
        ReproductionError: there is none of this name.
    """
    if (paper, name) in _trial:
        return _trial[paper, name]
    known = _values(paper)
    if name not in known:
        raise ReproductionError(f"found no parameter {name!r} of {paper} in calibration.toml, expected one")
    return known[name]


@cache
def _values(paper: str) -> dict[str, float]:
    return {one.name: one.value for one in calibration(paper).parameters}
