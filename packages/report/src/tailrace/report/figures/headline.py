"""The outcome in words, made from the figures. It says against which control, and when a difference may be chance."""

from __future__ import annotations

import math

from tailrace.report.figures.accuracy import Accuracy, Results
from tailrace.report.words import percent

CHANCE = 2.0  # differences below so many standard errors are called that


def gain(results: Results) -> str:
    """One or two sentences: accuracy before and after, and the best control."""
    after, before = results.after, results.before
    if after is None:
        if before is None:
            return "No held-out accuracy has been measured."
        return f"Held-out accuracy before training is {percent(before.accuracy)}; none has been measured after it yet."
    said = _change(before, after)
    best = results.best_control
    if best is None:
        return f"{said} No control without RL was measured, so how much of it RL is needed for is not known."
    return f"{said} {_against(best, after)}"


def standard_errors(a: Accuracy, b: Accuracy) -> float:
    """How many standard errors of their difference two accuracies are apart."""
    error = math.hypot(a.error, b.error)
    return abs(a.accuracy - b.accuracy) / error if error else math.inf


def _change(before: Accuracy | None, after: Accuracy) -> str:
    if before is None:
        return f"Held-out accuracy after training is {percent(after.accuracy)} ({after.problems} problems, sampled)."
    points = 100 * (after.accuracy - before.accuracy)
    chance = "" if not points or standard_errors(before, after) >= CHANCE else "; so small a difference may be chance"
    verb = "rose" if points > 0 else "fell"
    moved = f"{verb} from {percent(before.accuracy)} to {percent(after.accuracy)}, by {abs(points):.1f} points"
    stayed = f"stayed at {percent(after.accuracy)}"
    return (
        f"Held-out accuracy {moved if points else stayed} "
        f"({after.problems} problems, sampled; standard error {100 * after.error:.1f} points{chance})."
    )


def _against(best: Accuracy, after: Accuracy) -> str:
    points = 100 * (after.accuracy - best.accuracy)
    apart = standard_errors(best, after)
    control = f"the best control without RL ({best.name}) reaches {percent(best.accuracy)}"
    if points > 0 and apart >= CHANCE:
        return f"RL beats every control that was measured: {control}, {points:.1f} points less ({apart:.1f} standard errors)."
    if points > 0:
        return f"Whether RL beats the controls is open: {control}, {points:.1f} points less, which may be chance."
    if points == 0:
        return f"RL does not beat the controls: {control} as well."
    chance = "" if apart >= CHANCE else ", which may be chance"
    return f"RL does not beat the controls: {control}, {-points:.1f} points more{chance}."
