"""All methods beside each other on prompts held out, and the ranker that `auto` makes of the rest.

examples ─┬─ seven tenths: every method learns
          ├─ two tenths: held back  ──────────────────────────────► auto chooses by them
          └─ a tenth: held out, seen by nothing before ───────────► the table      (7:2:1, StreamRL, section 7)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.ranker.errors import ExampleError, RankerOptionError
from tailrace.ranker.example import Example, check_examples, check_lengths
from tailrace.ranker.methods import Deadline, Method, Predictor, Progress, Setting, configured, load_method, silent
from tailrace.ranker.ranker import LEAST_PROMPTS, LengthRanker
from tailrace.ranker.recall import SHARES, ceiling
from tailrace.ranker.splits import hold_out, hold_out_families, prompts_of
from tailrace.ranker.trials import installed_methods, measured, measured_with_samples, try_methods

SPLIT = (7, 2, 1)
"""Parts of the prompts: learned from, held back, held out (StreamRL, section 7)."""
_FIGURES = ("recall20", "recall10", "recall5", "tau_b")


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found.

    Args:
        ranker: of the method chosen, which has seen nothing of the prompts held out.
        ceilings: of the prompts held out, by the names ``ceiling20``, ``ceiling10`` and ``ceiling5``, and of other examples, if
            there are some, ``transfer_ceiling20``; None if no prompt has two samples.
        methods: for each method recall20, recall10, recall5 and tau_b on the prompts held out, and train_s, its seconds; with
            ``transfer_`` before their names the first four on other examples, if there are some.
        left_out: why other methods were not tried.
        held_out: how many prompts were.
    """

    ranker: LengthRanker
    ceilings: Mapping[str, float | None]
    methods: Mapping[str, Mapping[str, float]]
    left_out: Mapping[str, str]
    held_out: int

    def as_json(self) -> dict[str, Any]:
        """``{"chosen", "objective", "held_out", "methods"}`` and what `ceilings` has, in one object."""
        methods = {name: dict(figures) for name, figures in self.methods.items()}
        chosen = {"chosen": self.ranker.method, "objective": self.ranker.objective, "held_out": self.held_out}
        return {**chosen, **self.ceilings, "methods": methods}


def compare(
    examples: Sequence[Example],
    *,
    method: str = "auto",
    options: Mapping[str, Any] | None = None,
    names: Collection[str] | None = None,
    transfer: Sequence[Example] | None = None,
    split: tuple[int, int, int] = SPLIT,
    by_family: bool = False,
    seed: int = 0,
    budget_s: float = 300.0,
    policy: Path | None = None,
    init: Path | None = None,
    progress: Progress = silent,
) -> Comparison:
    """Hold some prompts out, train every method on the others, and measure them all on those held out.

    Methods that need samples of a prompt learn half of those of the prompts held out, and are measured on the other half.

    Args:
        examples: prompts with the lengths of their responses.
        method: of the ranker; ``"auto"`` chooses by prompts held back from the rest.
        options: of the method that is named, see `configured`.
        names: methods to try, and the named one; None for all.
        transfer: other examples, such as lengths of another policy, on which every method is measured, too; prompts that are
            learned from do not count.
        split: parts of the prompts that are learned from, held back and held out.
        by_family: hold families out, not prompts: how well a method knows those that it has never seen.
        seed: of all that is random.
        budget_s: seconds of training, of all methods together.
        policy, init: see `LengthRanker.train`.
        progress: called with what is being done.

    Raises:
        ExampleError: there are no examples, or too few different prompts or families to hold some out, or no two responses
            differ, or all were truncated.
        UnknownMethodError: no method has this name.
        RankerOptionError: the method has no such option, or a value is outside its range, or a part of the split is below 1.
        RankerError: the method named could not be tried; the message says why.
        MissingExtraError: it needs a library that is not installed.
    """
    known = check_examples(examples)
    check_lengths(known)
    for name in (*(names or ()), *([] if method == "auto" else [method])):
        load_method(name)
    if options and method == "auto":
        raise RankerOptionError(
            f"found the option {next(iter(options))!r}, expected a method by name, whose option it is"
        )
    if min(split) < 1:
        raise RankerOptionError(f"found the split {':'.join(map(str, split))}, expected parts of at least 1")
    share = split[2] / sum(split)
    rest, held_out = (hold_out_families if by_family else hold_out)(known, share, seed)
    if prompts_of(rest) < LEAST_PROMPTS or not held_out:
        raise ExampleError(
            f"found {prompts_of(known)} different prompts, of which {prompts_of(rest)} are left where some are held out, "
            f"expected at least {LEAST_PROMPTS} left"
        )
    others = () if transfer is None else _unseen(check_examples(transfer), rest)
    setting = Setting(seed, Deadline(budget_s), policy, init, progress)
    learn, held_back = hold_out(rest, split[1] / (split[0] + split[1]), seed + 1)
    methods, missing = installed_methods(with_samples=True)
    if method != "auto" and options:
        methods[method] = configured(method, options)
    if names is not None:
        methods = {name: each for name, each in methods.items() if name in {*names, method}}
    trials = try_methods(methods, learn, held_back, setting)
    left_out = {**missing, **trials.left_out}
    chosen = trials.best() if method == "auto" else trials.best_of(method)
    ranker = LengthRanker.of_trial(chosen, rest, held_back, setting, budget_s)
    table = {}
    for trial in trials.tried:
        progress({"method": trial.name, "phase": "measuring"})
        predictor = trial.predictor
        # as the ranker does, a quick one learns from what was held back, too
        if trial.method.quick and not trial.method.needs_samples:
            predictor = trial.method.fit(rest, dataclasses.replace(setting, progress=silent))
        figures = _figures(trial.method, predictor, rest, held_out, setting)
        row = {name: figures[name] for name in _FIGURES}
        if others:
            figures = _figures(trial.method, predictor, rest, others, setting)
            row |= {f"transfer_{name}": figures[name] for name in _FIGURES}
        table[trial.name] = {**row, "train_s": round(trial.train_s, 3)}
    ceilings = {f"ceiling{name.removeprefix('recall')}": ceiling(held_out, tail, seed) for name, tail in SHARES.items()}
    if others:
        ceilings["transfer_ceiling20"] = ceiling(others, 0.2, seed)
    return Comparison(ranker, ceilings, table, left_out, prompts_of(held_out))


def _unseen(examples: Sequence[Example], rest: Sequence[Example]) -> Sequence[Example]:
    known = {example.prompt for example in rest}
    found = [example for example in examples if example.prompt not in known]
    if not found:
        raise ExampleError(
            f"found {prompts_of(examples)} prompts to transfer to, all learned from, expected others, or those held out"
        )
    return found


def _figures(
    method: Method, predictor: Predictor, rest: Sequence[Example], others: Sequence[Example], setting: Setting
) -> Mapping[str, float]:
    """The figures on examples that were not learned from."""
    return measured_with_samples(method, rest, others, setting) if method.needs_samples else measured(predictor, others)
