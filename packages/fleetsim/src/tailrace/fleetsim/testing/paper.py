"""Whether a paper's tables, parameters, systems and measures belong together. Nothing is simulated."""

from __future__ import annotations

from tailrace.fleetsim.build import build_fleet
from tailrace.fleetsim.reproduce import Paper, Point
from tailrace.fleetsim.reproduce.points import systems
from tailrace.fleetsim.reproduce.targets import TargetClass


def check_paper(paper: Paper) -> int:
    """Hold a paper to what its figures promise a reader.

    Returns:
        Points that it simulates, so that a caller can tell that the suite was not idle.

    Raises:
        AssertionError: a target is not measured, most of them were fitted on, or a point cannot be.
    """
    targets, measures, orders = paper.targets(), paper.measures(quick=False), paper.orders(quick=False)
    ids = [target.id for target in targets]
    assert len(ids) == len(set(ids)), f"found targets twice: {sorted(ids)}"
    silent = {target.id for target in targets if target.kind is not None and target.reason}  # a row that says why
    assert set(measures) <= set(ids), f"found measures of no target: {set(measures) - set(ids)}"
    assert set(ids) - set(measures) <= silent, f"not measured, with no reason: {set(ids) - set(measures) - silent}"
    assert {one.id for one in paper.orderings()} == set(orders), "statements on orders and what checks them differ"
    for target in targets:
        if target.leader is not None:
            (leader,) = [one for one in targets if one.id == target.leader]
            assert leader.kind is target.kind, f"{target.id} is {target.kind}, its leader {leader.kind}"
            assert leader.leader is None, f"{target.id} counts with {target.leader}, which follows another"
    fitted = set(paper.parameters.fitted_on)
    assert all(target.kind in (None, TargetClass.FIT) for target in targets if target.id in fitted)
    assert fitted <= set(ids), f"found {fitted - set(ids)} fitted on, which are no targets"
    assert 3 * len(fitted) <= len(ids), f"found {len(fitted)} of {len(ids)} targets fitted on, expected a third at most"
    for parameter in paper.parameters.known.values():
        assert len(parameter.source) >= 10, f"parameter {parameter.name} has no reason"
    for system in systems(paper.package):
        build_fleet(Point(paper.package, system).config())
    points = {point for measure in measures.values() for point in measure.points}
    points |= {point for order in orders.values() for point in order.points}
    for point in points:
        build_fleet(point.config())
    return len(points)
