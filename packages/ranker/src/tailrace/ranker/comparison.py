"""All methods beside each other on prompts held out, and the ranker that `auto` makes of the rest.

examples ─┬─ four fifths ─┬─ four fifths: every method learns      ─► auto chooses by the next fifth
          │               └─ a fifth: held back
          └─ a fifth: held out, seen by nothing before ───────────► the table
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.ranker.errors import ExampleError, RankerError
from tailrace.ranker.example import Example, check_examples
from tailrace.ranker.methods import Deadline, Progress, Setting, load_method, silent
from tailrace.ranker.ranker import HELD_BACK, LEAST_PROMPTS, LengthRanker
from tailrace.ranker.recall import ceiling20
from tailrace.ranker.splits import hold_out, prompts_of
from tailrace.ranker.trials import MethodTrial, installed_methods, measured, measured_with_samples, try_methods

_FIGURES = ("recall20", "recall10", "recall5", "tau_b")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found.

    Args:
        ranker: of the method chosen, which has seen nothing of the prompts held out.
        ceiling20: of the prompts held out; None if none of them has two samples.
        methods: for each method recall20, recall10, recall5 and tau_b on the prompts held out, and train_s, its seconds.
        left_out: why other methods were not tried.
        held_out: how many prompts were.
    """

    ranker: LengthRanker
    ceiling20: float | None
    methods: Mapping[str, Mapping[str, float]]
    left_out: Mapping[str, str]
    held_out: int

    def as_json(self) -> dict[str, Any]:
        """``{"chosen", "ceiling20", "methods"}``."""
        methods = {name: dict(figures) for name, figures in self.methods.items()}
        return {"chosen": self.ranker.method, "ceiling20": self.ceiling20, "methods": methods}


def compare(
    examples: Sequence[Example],
    *,
    method: str = "auto",
    seed: int = 0,
    budget_s: float = 300.0,
    policy: Path | None = None,
    init: Path | None = None,
    progress: Progress = silent,
) -> Comparison:
    """Hold out a fifth of the prompts, train every method on the rest, and measure them all on those held out.

    Methods that need samples of a prompt learn half of those of the prompts held out, and are measured on the other half.

    Args:
        examples: prompts with the lengths of their responses.
        method: of the ranker; ``"auto"`` chooses by prompts held back from the rest.
        seed: of all that is random.
        budget_s: seconds of training, of all methods together.
        policy, init: see `LengthRanker.train`.
        progress: called with what is being done.

    Raises:
        ExampleError: there are no examples, or too few different prompts to hold some out.
        UnknownMethodError: no method has this name.
        RankerError: the method named could not be tried; the message says why.
    """
    known = check_examples(examples)
    if method != "auto":
        load_method(method)
    rest, held_out = hold_out(known, HELD_BACK, seed)
    if prompts_of(rest) < LEAST_PROMPTS:
        least = LEAST_PROMPTS + LEAST_PROMPTS // 4 + 1
        raise ExampleError(
            f"found {prompts_of(known)} different prompts, expected at least {least}: a fifth of them is held out"
        )
    setting = Setting(seed, Deadline(budget_s), policy, init, progress)
    learn, held_back = hold_out(rest, HELD_BACK, seed + 1)
    methods, missing = installed_methods(with_samples=True)
    trials = try_methods(methods, learn, held_back, setting)
    left_out = {**missing, **trials.left_out}
    if method in left_out:
        raise RankerError(f"the method {method!r} could not be tried: {left_out[method]}")
    chosen = trials.best() if method == "auto" else next(trial for trial in trials.tried if trial.name == method)
    ranker = LengthRanker.of_trial(chosen, rest, held_back, setting, budget_s)
    table = {}
    for trial in trials.tried:
        progress({"method": trial.name, "phase": "measuring"})
        figures = _on_held_out(trial, rest, held_out, setting)
        table[trial.name] = {**{name: figures[name] for name in _FIGURES}, "train_s": round(trial.train_s, 3)}
    return Comparison(ranker, ceiling20(held_out, seed), table, left_out, prompts_of(held_out))


def _on_held_out(
    trial: MethodTrial, rest: Sequence[Example], held_out: Sequence[Example], setting: Setting
) -> Mapping[str, float]:
    if trial.method.needs_samples:
        return measured_with_samples(trial.method, rest, held_out, setting)
    predictor = trial.predictor
    if trial.method.quick:  # as the ranker does, it learns from what was held back, too
        predictor = trial.method.fit(rest, dataclasses.replace(setting, progress=silent))
    return measured(predictor, held_out)
