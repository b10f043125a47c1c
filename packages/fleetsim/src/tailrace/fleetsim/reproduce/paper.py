"""A paper's whole table: what is needed is simulated, then every target is measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tailrace.contracts import TailraceError
from tailrace.fleetsim.errors import ReproductionError
from tailrace.fleetsim.reproduce import laminar, staleflow
from tailrace.fleetsim.reproduce.calibration import calibration
from tailrace.fleetsim.reproduce.lab import Lab, Listener
from tailrace.fleetsim.reproduce.measures import Measure, Order
from tailrace.fleetsim.reproduce.points import Point
from tailrace.fleetsim.reproduce.records import Compared, Record, record
from tailrace.fleetsim.reproduce.targets import Target, orderings, targets

PAPERS = ("laminar", "staleflow")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A paper's table."""

    records: list[Record]
    compared: list[Compared]


def reproduce(
    paper: str,
    *,
    only: Collection[str] = (),
    processes: int | None = None,
    quick: bool = False,
    listener: Listener | None = None,
) -> Reproduction:
    """The paper's numbers beside ours.

    Args:
        only: ids of targets; all, and the statements on orders, if empty.
        processes: simulations at once; as many as there are processor cores if None.
        quick: fewer batches: minutes become seconds, and numbers noisier.
        listener: hears of every simulation that is done.

    Raises:
        ReproductionError: there is no such paper or target.
    """
    if paper not in PAPERS:
        raise ReproductionError(f"found the paper {paper!r}, expected one of {', '.join(PAPERS)}")
    chosen = _chosen(targets(paper), only)
    module = {"laminar": laminar, "staleflow": staleflow}[paper]
    measures: Mapping[str, Measure] = module.measures(quick=quick)
    orders: Mapping[str, Order] = {} if only else module.orders(quick=quick)
    lab = Lab(processes=processes, listener=listener)
    lab.simulate(_points(measures, chosen, orders))
    fitted = calibration(paper).fitted_on
    records = [_record(target, measures[target.id], lab, fitted) for target in chosen]
    compared = [
        Compared(ordering.id, ordering.statement, _compare(orders[ordering.id], lab))
        for ordering in orderings(paper)
        if ordering.id in orders
    ]
    return Reproduction(records, compared)


def _chosen(known: Sequence[Target], only: Collection[str]) -> list[Target]:
    unknown = sorted(set(only) - {target.id for target in known})
    if unknown:
        raise ReproductionError(
            f"found the target {unknown[0]!r}, expected one of {', '.join(target.id for target in known)}"
        )
    return [target for target in known if not only or target.id in only]


def _points(measures: Mapping[str, Measure], chosen: Sequence[Target], orders: Mapping[str, Order]) -> list[Point]:
    """What takes longest first, so that processes end together."""
    needed = dict.fromkeys(point for target in chosen for point in measures[target.id].points)
    needed.update(dict.fromkeys(point for order in orders.values() for point in order.points))
    return sorted(needed, key=lambda point: -point.weight)


def _record(target: Target, measure: Measure, lab: Lab, fitted: Collection[str]) -> Record:
    try:
        ours = measure.of(lab)
    except TailraceError as error:
        return record(target, None, fitted, failed=str(error))
    if len(ours) != len(target.paper):
        raise ReproductionError(f"target {target.id}: found {len(ours)} values, expected {len(target.paper)}")
    return record(target, ours, fitted)


def _compare(order: Order, lab: Lab) -> tuple[tuple[str, bool], ...]:
    try:
        return tuple(order.of(lab))
    except TailraceError as error:
        return ((str(error), False),)
