"""What a run measured on held-out problems, from its log, and its numbers as a person reads them."""

from __future__ import annotations

from tailrace.pipeline.run.results import Estimate, Quantity, Results, baseline, results_of
from tailrace.report.record import Record
from tailrace.report.words import percent


def results(record: Record) -> Results:
    """The evaluations of a run, sorted into before, after and controls; none of a simulated run, in which nothing learns."""
    if record.directory.simulated is not None:
        return Results("")
    evaluations = record.folds.evaluations.done
    return results_of(evaluations, record.controls, baseline=baseline(record.config))


def said(quantity: Quantity, value: float) -> str:
    """A value: an accuracy in per cent, a reward in the verifier's units."""
    return percent(value) if quantity is Quantity.ACCURACY else f"{value:.3f}"


def difference(quantity: Quantity, value: float) -> str:
    """How large a difference or an error is."""
    return f"{100 * abs(value):.1f} points" if quantity is Quantity.ACCURACY else f"{abs(value):.3f}"


def with_error(quantity: Quantity, estimate: Estimate) -> str:
    """A value and its standard error."""
    if quantity is Quantity.ACCURACY:
        return f"{percent(estimate.value)} ± {100 * estimate.error:.1f}"
    return f"{estimate.value:.3f} ± {estimate.error:.3f}"
