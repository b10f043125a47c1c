"""Whether a paper's tables, parameters, systems and measures belong together. Nothing is simulated."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.reproduce import Paper, Point
from tailrace.fleetsim.reproduce.points import systems, table
from tailrace.fleetsim.reproduce.targets import TargetClass


def check_paper(paper: Paper, configs: Path | None = None) -> int:
    """Hold a paper to what its figures promise a reader.

    Args:
        configs: the folder in which its systems' tables are linked as ``NAME.toml``, if they are.

    Returns:
        Points that it simulates, so that a caller can tell that the suite was not idle.

    Raises:
        AssertionError: a target is not measured, most of them were fitted on, a point cannot be, or a linked table is another.
    """
    targets, measures, orders = paper.targets(), paper.measures(quick=False), paper.orders(quick=False)
    ids = [target.id for target in targets]
    assert len(ids) == len(set(ids)), f"found targets twice: {sorted(ids)}"
    silent = {target.id for target in targets if target.reason}  # a row that says why
    assert set(measures) <= set(ids), f"found measures of no target: {set(measures) - set(ids)}"
    assert set(ids) - set(measures) <= silent, f"not measured, with no reason: {set(ids) - set(measures) - silent}"
    assert {one.id for one in paper.orderings()} == set(orders), "statements on orders and what checks them differ"
    for target in targets:
        if target.leader is not None:
            (leader,) = [one for one in targets if one.id == target.leader]
            assert leader.kind is target.kind, f"{target.id} is {target.kind}, its leader {leader.kind}"
            assert leader.leader is None, f"{target.id} counts with {target.leader}, which follows another"
    _check_fit(paper)
    for change in paper.changes():
        assert change.date <= date.today(), f"found a change of {change.date}, which is to come"  # noqa: DTZ011
    for parameter in paper.parameters.known.values():
        assert len(parameter.source) >= 10, f"parameter {parameter.name} has no reason"
    for system in systems(paper.package):
        build_fleet(Point(paper.package, system).config())
        if configs is not None:
            linked = configs / f"{system}.toml"
            assert linked.samefile(table(paper.package, system)), f"{linked} is not the table that is reproduced"
    points = {point for measure in measures.values() for point in measure.points}
    points |= {point for order in orders.values() for point in order.points}
    for point in points:
        build_fleet(point.config())
    return len(points)


def _check_fit(paper: Paper) -> None:
    """A third at most of the targets that are fitted or predicted are fitted on; one that follows another counts with it."""
    targets, fitted = paper.targets(), set(paper.parameters.fitted_on)
    leaders = [target for target in targets if target.leader is None]
    said = {target.id for target in leaders if target.kind is TargetClass.FIT}
    before = {target.id for target in targets if target.was_fitted}
    assert before <= fitted, f"found {before - fitted} said to have been fitted on, which are not in fitted_on"
    others = {target.id for target in targets if target.kind is TargetClass.PREDICTION} - before
    assert not fitted & others, f"found predictions fitted on, which do not say so: {fitted & others}"
    assert before or said == fitted, f"found {said} said to be fitted on, and {fitted} fitted on"
    counted = len(said) + sum(target.kind is TargetClass.PREDICTION for target in leaders)
    assert 3 * len(said) <= counted, f"found {len(said)} of {counted} targets to fit on, expected a third at most"
