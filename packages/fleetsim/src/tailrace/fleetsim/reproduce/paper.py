"""A paper's whole table: the points that its measures need are simulated once, then every target is measured."""

from __future__ import annotations

import time
import tomllib
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from typing import Any, Protocol, cast

from tailrace.contracts import TailraceError, plugins
from tailrace.fleetsim.errors import ReproductionError
from tailrace.fleetsim.reproduce.points import Point
from tailrace.fleetsim.reproduce.probes import ProbeFindings, measure
from tailrace.fleetsim.reproduce.records import OrderComparison, TargetRecord, record
from tailrace.fleetsim.reproduce.targets import Amendment, Ordering, Target, Value, changes, orderings, targets
from tailrace.fleetsim.run import in_processes


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


Listener = Callable[["LabProgress"], None]
Found = Mapping[Point, ProbeFindings]
GROUP = "tailrace.paper"


class Measures(Protocol):
    """How a paper's numbers are measured."""

    def __call__(self, *, quick: bool) -> Mapping[str, TargetMeasure]:
        """The measures by the id of their target."""
        ...


class Orders(Protocol):
    """How a paper's statements on orders are checked."""

    def __call__(self, *, quick: bool) -> Mapping[str, OrderStatement]:
        """The checks by the id of their statement."""
        ...


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper's own figures. Apps register theirs in the entry-point group ``tailrace.paper``.

    Args:
        name: the app's.
        package: the one that holds ``targets.toml``, ``parameters.toml`` and the folder ``systems``.
        parameters: its free parameters.
    """

    name: str
    package: str
    parameters: Parameters
    measures: Measures
    orders: Orders

    def targets(self) -> list[Target]:
        """Its numbers, in its order."""
        return targets(self.package)

    def orderings(self) -> list[Ordering]:
        """Its statements on orders."""
        return orderings(self.package)

    def changes(self) -> list[Amendment]:
        """What was changed after its predictions were seen, oldest first."""
        return changes(self.package)


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A paper's table, and what was changed after its predictions were seen."""

    records: list[TargetRecord]
    compared: list[OrderComparison]
    changes: list[Amendment]


def reproduce(
    paper: Paper | str,
    *,
    only: Collection[str] = (),
    processes: int | None = None,
    quick: bool = False,
    listener: Listener | None = None,
) -> Reproduction:
    """The paper's numbers beside ours.

    Args:
        paper: itself, or the name of the app that it is registered with.
        only: ids of targets; all, and the statements on orders, if empty.
        processes: simulations at once; as many as there are processor cores if None.
        quick: fewer batches: minutes become seconds, and numbers noisier.
        listener: hears of every simulation that is done.

    Raises:
        PluginError, ReproductionError: there is no such paper or target.
    """
    if isinstance(paper, str):
        paper = cast(Paper, plugins.load(GROUP, paper))
    chosen = _chosen(paper.targets(), only)
    measures = paper.measures(quick=quick)
    orders: Mapping[str, OrderStatement] = {} if only else paper.orders(quick=quick)
    lab = Lab(processes=processes, listener=listener)
    lab.simulate(_points(measures, chosen, orders))
    records = [_record(target, measures.get(target.id), lab) for target in chosen]
    compared = [
        OrderComparison(ordering.id, ordering.statement, _compare(orders[ordering.id], lab))
        for ordering in paper.orderings()
        if ordering.id in orders
    ]
    changes = [one for one in paper.changes() if not only or set(one.moves) & set(only)]
    return Reproduction(records, compared, changes)


def _chosen(known: Sequence[Target], only: Collection[str]) -> list[Target]:
    unknown = sorted(set(only) - {target.id for target in known})
    if unknown:
        raise ReproductionError(
            f"found the target {unknown[0]!r}, expected one of {', '.join(target.id for target in known)}"
        )
    return [target for target in known if not only or target.id in only]


def _points(
    measures: Mapping[str, TargetMeasure], chosen: Sequence[Target], orders: Mapping[str, OrderStatement]
) -> list[Point]:
    """What takes longest first, so that processes end together."""
    needed = dict.fromkeys(point for target in chosen if target.id in measures for point in measures[target.id].points)
    needed.update(dict.fromkeys(point for order in orders.values() for point in order.points))
    return sorted(needed, key=lambda point: -point.weight)


def _record(target: Target, measure: TargetMeasure | None, lab: Lab) -> TargetRecord:
    if measure is None:
        return record(target, None, failed=target.reason or "not simulated")
    try:
        ours = measure.of(lab)
    except TailraceError as error:
        return record(target, None, failed=str(error))
    if len(ours) != len(target.paper):
        raise ReproductionError(f"target {target.id}: found {len(ours)} values, expected {len(target.paper)}")
    return record(target, ours)


def _compare(order: OrderStatement, lab: Lab) -> tuple[tuple[str, bool], ...]:
    try:
        return tuple(order.of(lab))
    except TailraceError as error:
        return ((str(error), False),)


@dataclass(frozen=True, slots=True)
class TargetMeasure:
    """One target.

    Args:
        points: simulations that it needs.
        of: its values, in the order of the target's.
    """

    points: Sequence[Point]
    of: Callable[[Found], Sequence[Value]]


@dataclass(frozen=True, slots=True)
class OrderStatement:
    """A statement on orders, as single comparisons.

    Args:
        points: simulations that it needs.
        of: each comparison in words, and whether it comes out as the paper says.
    """

    points: Sequence[Point]
    of: Callable[[Found], Sequence[tuple[str, bool]]]


@dataclass(frozen=True, slots=True)
class LabProgress:
    """How far the simulations are.

    Args:
        wall_s: since the first began.
        trajectories: trained on in those that are done.
    """

    done: int
    points: int
    wall_s: float
    trajectories: int


class Lab(Mapping[Point, ProbeFindings]):
    """What was found at points. Looking up one that could not be simulated says why.

    Args:
        processes: simulations at once; as many as there are processor cores if None.
        listener: hears of every simulation that is done.
    """

    def __init__(self, *, processes: int | None = None, listener: Listener | None = None) -> None:
        self._processes, self._listener = processes, listener
        self._found: dict[Point, ProbeFindings | TailraceError] = {}

    def simulate(self, points: Iterable[Point]) -> None:
        """Simulate those that have not been."""
        wanted = [point for point in dict.fromkeys(points) if point not in self._found]
        begun, trajectories = time.monotonic(), 0
        for done, (place, found) in enumerate(in_processes(_one, wanted, processes=self._processes), start=1):
            self._found[wanted[place]] = found
            if isinstance(found, ProbeFindings):
                trajectories += found.result.trajectories
            if self._listener is not None:
                self._listener(LabProgress(done, len(wanted), time.monotonic() - begun, trajectories))

    def __getitem__(self, point: Point) -> ProbeFindings:
        found = self._found[point]
        if isinstance(found, TailraceError):
            raise ReproductionError(f"{point}: {found}")
        if found.result.failure is not None:
            raise ReproductionError(f"{point}: the run failed: {found.result.failure}")
        return found

    def __iter__(self) -> Iterable[Point]:  # type: ignore[override]
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _one(point: Point) -> ProbeFindings | TailraceError:
    try:
        return measure(point)
    except TailraceError as error:
        return error
    except Exception as error:  # a fault of ours: its targets count as missed and say why, and the others are measured
        where = traceback.extract_tb(error.__traceback__)[-1]
        return ReproductionError(f"broke with {type(error).__name__}: {error} ({where.filename}:{where.lineno})")
