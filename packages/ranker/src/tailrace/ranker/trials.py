"""Tries methods on the same prompts: what `auto` chooses from, and what `tailrace rank` tables."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.contracts import MissingExtraError
from tailrace.ranker.errors import PredictionError, RankerError, RankerOptionError
from tailrace.ranker.example import Example
from tailrace.ranker.methods import Deadline, Method, Predictor, Setting, expanded, load_method, method_names
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.recall import mean_measures, measure
from tailrace.ranker.splits import halves

_SIMPLEST_FIRST = (
    "random",
    "prompt-length",
    "family-mean",
    "last-length",
    "siblings",
    "lexical",
    "hidden",
    "encoder",
    "sft",
)

LEARNING = 0.85
"""Share of a method's time for learning; the rest is for measuring it."""
_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class MethodTrial:
    """One method, fitted and measured.

    Args:
        held_back: figures on prompts that it did not learn from, see `measure`.
        train_s: seconds that it learned for.
    """

    name: str
    method: Method
    predictor: Predictor
    held_back: Mapping[str, float]
    train_s: float


@dataclass(frozen=True, slots=True)
class Trials:
    """All methods that could be tried.

    Args:
        tried: in the order of their cost.
        left_out: why others were not, by name.
        lacking: those of them whose library is not installed.
    """

    tried: tuple[MethodTrial, ...]
    left_out: Mapping[str, str]
    lacking: tuple[str, ...] = ()

    def best(self) -> MethodTrial:
        """The highest recall20 among methods that need no samples of a prompt; of equal ones the simplest.

        Raises:
            RankerOptionError: none could be tried.
        """
        able = [trial for trial in self.tried if not trial.method.needs_samples]
        if not able:
            why = "; ".join(f"{name}: {reason}" for name, reason in self.left_out.items())
            raise RankerOptionError(f"found no method that can be tried here ({why}), expected at least one")
        return max(able, key=lambda trial: trial.held_back["recall20"])

    def best_of(self, name: str) -> MethodTrial:
        """A method's trial; of one that left a choice, the alternative with the highest recall20.

        Raises:
            RankerError: it could not be tried.
        """
        able = [trial for trial in self.tried if trial.name.partition(":")[0] == name]
        if not able:
            why = next(
                (why for each, why in self.left_out.items() if each.partition(":")[0] == name), "it is not installed"
            )
            raise RankerError(f"the method {name!r} could not be tried: {why}")
        return max(able, key=lambda trial: trial.held_back["recall20"])


def installed_methods(*, with_samples: bool) -> tuple[dict[str, Method], dict[str, str]]:
    """All registered methods, the simplest first, and why others do not load.

    Args:
        with_samples: whether methods that need samples of a prompt are among them.
    """
    order = sorted(method_names(), key=lambda name: (_place(name), name))
    found: dict[str, Method] = {}
    left_out: dict[str, str] = {}
    for name in order:
        try:
            method = load_method(name)
        except MissingExtraError as error:
            left_out[name] = str(error)
            continue
        if with_samples or not method.needs_samples:
            found[name] = method
    return found, left_out


def try_methods(
    methods: Mapping[str, Method], learn: Sequence[Example], held: Sequence[Example], setting: Setting
) -> Trials:
    """Fit each method, and each alternative of those that leave a choice, and measure it on the prompts held back.

    Quick ones first; what is left of the budget is shared evenly by the others. Methods that lack a library or a model are left
    out, and so are those for which no time is left, but for the first one.

    Raises:
        RankerModelError: a model directory cannot be used.
    """
    methods = expanded(methods, setting)
    tried: dict[str, MethodTrial] = {}
    left_out: dict[str, str] = {}
    lacking: list[str] = []
    order = sorted(methods, key=lambda name: not methods[name].quick)
    for at, name in enumerate(order):
        method = methods[name]
        if tried and not setting.deadline.allows(0.0):
            left_out[name] = "no time was left of the budget"
            continue
        part = LEARNING if method.quick else LEARNING / (len(order) - at)
        its = dataclasses.replace(setting, deadline=setting.deadline.part(part))
        its_end = setting.deadline.part(part / LEARNING)
        setting.progress({"method": name, "phase": "training"})
        began = setting.deadline.now()
        try:
            predictor, known = _fitted(method, learn, held, its)
            train_s = setting.deadline.now() - began
            trial = MethodTrial(name, method, predictor, known or measured(predictor, held, its_end), train_s)
        except (MissingExtraError, RankerOptionError, PredictionError) as error:
            left_out[name] = str(error)
            lacking += [name] if isinstance(error, MissingExtraError) else []
            continue
        setting.progress(
            {"method": name, "phase": "tried", "recall20": trial.held_back["recall20"], "train_s": train_s}
        )
        tried[name] = trial
    return Trials(tuple(tried[name] for name in methods if name in tried), left_out, tuple(lacking))


def measured(predictor: Predictor, examples: Sequence[Example], deadline: Deadline | None = None) -> dict[str, float]:
    """The figures of a predictor on these examples, see `measure`.

    Args:
        predictor: predicts them.
        examples: at least one.
        deadline: after which those count that were predicted by then, in a random but fixed order; None for all.
    """
    order = list(range(len(examples)))
    random.Random(0).shuffle(order)
    chosen: list[Example] = []
    predictions: list[Prediction] = []
    slowest = 0.0
    for first in range(0, len(order), _AT_ONCE):
        began = deadline.now() if deadline else 0.0
        if predictions and deadline and not deadline.allows(slowest):
            break
        part = [examples[at] for at in order[first : first + _AT_ONCE]]
        predictions += predictor.predict([example.prompt for example in part])
        chosen += part
        slowest = max(slowest, deadline.now() - began if deadline else 0.0)
    return measure(predictions, chosen)


def measured_with_samples(
    method: Method, learn: Sequence[Example], held: Sequence[Example], setting: Setting
) -> dict[str, float]:
    """The figures of a method that needs samples of the prompts: it learns half of theirs, too, and is measured on the others.

    Mean of both ways. Without a prompt that has two samples it knows nothing of any.
    """
    ways = [(known, asked) for known, asked in halves(held, setting.seed) if asked]
    if not ways:
        return measured(method.fit(learn, setting), held)
    return mean_measures([measured(method.fit([*learn, *known], setting), asked) for known, asked in ways])


def _fitted(
    method: Method, learn: Sequence[Example], held: Sequence[Example], setting: Setting
) -> tuple[Predictor, dict[str, float] | None]:
    predictor = method.fit(learn, setting)
    return predictor, measured_with_samples(method, learn, held, setting) if method.needs_samples else None


def _place(name: str) -> int:
    return _SIMPLEST_FIRST.index(name) if name in _SIMPLEST_FIRST else len(_SIMPLEST_FIRST)
