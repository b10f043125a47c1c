"""Whether a paper's tables, parameters, systems and measures belong together. Nothing is simulated."""

from __future__ import annotations

from tailrace.fleetsim.build import build_fleet
from tailrace.fleetsim.reproduce import Paper, Point
from tailrace.fleetsim.reproduce.points import systems


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
    assert set(ids) == set(measures), f"targets and measures differ in {set(ids) ^ set(measures)}"
    assert {one.id for one in paper.orderings()} == set(orders), "statements on orders and what checks them differ"
    fitted = set(paper.parameters.fitted_on)
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
