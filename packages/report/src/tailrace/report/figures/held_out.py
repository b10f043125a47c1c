"""What a run measured on held-out problems, from its log, and its numbers as a person reads them."""

from __future__ import annotations

import math

from tailrace.pipeline.run.figures.results import (
    Estimate,
    MeasuredAnswers,
    Quantity,
    Results,
    baseline,
    results_of,
)
from tailrace.report.reason_words import percent
from tailrace.report.record import Record

CHANCE = 2.0  # differences below so many standard errors are called that
FEWEST = 4
"""Problems. Of three, none right before and all right after may still be chance (p = 0.1), with no standard error."""
UNKNOWN_ACCURACY = "not known: rewards are graded, and the verifier does not say which answers are correct"


def results(record: Record) -> Results:
    """The evaluations of a run, sorted into before, after and controls; none of a simulated run, in which nothing learns."""
    if record.directory.simulated is not None:
        return Results("")
    evaluations = record.folds.run.evaluations
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


# The outcome in words, made from the figures. It says of which quantity, against which control, and what may be chance.


def gain(results: Results) -> str:
    """A few sentences: each quantity before and after, and the best control by the one that decides."""
    after, before, quantities = results.after, results.before, results.quantities
    if not quantities or (after is None and before is None):
        return "Nothing has been measured on held-out problems."
    decisive = quantities[0]
    if after is None:
        assert before is not None
        value = said(decisive, before.estimate(decisive).value)
        return f"Held-out {decisive} before training is {value}; none has been measured after it yet."
    changes = " ".join(_change(quantity, before, after) for quantity in quantities)
    best = results.best_control
    if best is None:
        return f"{changes} No control without RL was measured, so how much of it RL is needed for is not known."
    return f"{changes} {_against(decisive, best, after)}"


def reward_alone(results: Results) -> str | None:
    """A warning if reward rose by more than chance and accuracy did not; None if not so, or if that is not known."""
    after, before = results.after, results.before
    if len(results.quantities) < 2 or after is None or before is None:
        return None
    if not _rose(Quantity.REWARD, before, after) or _rose(Quantity.ACCURACY, before, after):
        return None
    was, now = before.estimate(Quantity.ACCURACY), after.estimate(Quantity.ACCURACY)
    chance = ", which may be chance" if now.value > was.value else ""
    earned = [said(Quantity.REWARD, one.reward.value) for one in (before, after)]
    right = [said(Quantity.ACCURACY, one.value) for one in (was, now)]
    return (
        f"Reward rose from {earned[0]} to {earned[1]}, accuracy did not: {right[0]} before, {right[1]} after{chance}. "
        "Look at what earns the reward."
    )


def standard_errors(a: Estimate, b: Estimate) -> float:
    """How many standard errors of their difference two estimates are apart."""
    error = math.hypot(a.error, b.error)
    return abs(a.value - b.value) / error if error else math.inf


def _apart(quantity: Quantity, a: MeasuredAnswers, b: MeasuredAnswers) -> float:
    """Standard errors between two measurements. They are 0 where problems are so few that any difference may be chance."""
    return 0.0 if _few(a, b) else standard_errors(a.estimate(quantity), b.estimate(quantity))


def _few(a: MeasuredAnswers, b: MeasuredAnswers) -> bool:
    return min(a.problems, b.problems) < FEWEST


def _rose(quantity: Quantity, a: MeasuredAnswers, b: MeasuredAnswers) -> bool:
    return b.estimate(quantity).value > a.estimate(quantity).value and _apart(quantity, a, b) >= CHANCE


def _change(quantity: Quantity, before: MeasuredAnswers | None, after: MeasuredAnswers) -> str:
    now = after.estimate(quantity)
    if before is None:
        return (
            f"Held-out {quantity} after training is {said(quantity, now.value)} ({after.problems} problems, sampled)."
        )
    was = before.estimate(quantity)
    by = now.value - was.value
    which = "of so few problems any" if _few(before, after) else "so small a"
    chance = "" if not by or _apart(quantity, before, after) >= CHANCE else f"; {which} difference may be chance"
    verb = "rose" if by > 0 else "fell"
    moved = f"{verb} from {said(quantity, was.value)} to {said(quantity, now.value)}, by {difference(quantity, by)}"
    stayed = f"stayed at {said(quantity, now.value)}"
    return (
        f"Held-out {quantity} {moved if by else stayed} "
        f"({after.problems} problems, sampled; standard error {difference(quantity, now.error)}{chance})."
    )


def _against(quantity: Quantity, best: MeasuredAnswers, after: MeasuredAnswers) -> str:
    reached, now = best.estimate(quantity), after.estimate(quantity)
    by, apart = now.value - reached.value, _apart(quantity, best, after)
    control = f"the best control without RL ({best.name}) reaches {said(quantity, reached.value)}"
    if by > 0 and apart >= CHANCE:
        far = "" if math.isinf(apart) else f" ({apart:.1f} standard errors)"
        return (
            f"RL beats every control that was measured, in {quantity}: {control}, {difference(quantity, by)} less{far}."
        )
    if by > 0:
        return (
            f"Whether RL beats the controls in {quantity} is open: {control}, {difference(quantity, by)} less, "
            "which may be chance."
        )
    if by == 0:
        return f"RL does not beat the controls in {quantity}: {control} as well."
    chance = "" if apart >= CHANCE else ", which may be chance"
    return f"RL does not beat the controls in {quantity}: {control}, {difference(quantity, by)} more{chance}."
