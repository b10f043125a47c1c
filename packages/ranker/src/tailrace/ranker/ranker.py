"""The ranker: trained on prompts and the lengths of their responses, it says which prompts will have the longest.

train ──► held back: a fifth of the prompts ──► measured: the reference for drift
  │                                                 │
  └─ learned: the rest ──► predictor ──► predict, rank, report
                              ▲
                update(recent examples): a new predictor beside the old one, of which one predicts
                reconsider(newer examples): which one, by all responses that neither has learned from
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.ranker.drift import Band, Correction, correction_of, has_enough, latest, recent
from tailrace.ranker.errors import DamagedRankerError, ExampleError, RankerOptionError, UnknownMethodError
from tailrace.ranker.example import Example, check_examples
from tailrace.ranker.learned.methods import Sft
from tailrace.ranker.methods import Choosing, Deadline, Method, Predictor, Progress, Setting, load_method, silent
from tailrace.ranker.prediction import Prediction, ranked
from tailrace.ranker.recall import ceiling20, compare_orders, measure
from tailrace.ranker.saved import SavedRanker, read_ranker, registered_name, write_ranker
from tailrace.ranker.splits import halves, hold_out, prompts_of
from tailrace.ranker.trials import (
    LEARNING,
    MethodTrial,
    installed_methods,
    measured,
    measured_with_samples,
    try_methods,
)

HELD_BACK = 0.2
LEAST_PROMPTS = 5
"""Different prompts of which some can be held back."""
JUDGED_EXAMPLES = 200
"""Examples by which two predictors are told apart at most; after that only the one that predicts is left."""
BAND_PROMPTS = 200
"""Prompts by which is known what recall and coverage to expect; with more the band stays as it is."""


@dataclass(frozen=True, slots=True)
class Update:
    """What an update did.

    Args:
        version: the ranker's version from now on.
        drifted: whether recall or coverage of the old predictor was outside its band on these examples.
        recall_before: recall20 of the old predictor, on those of these prompts that were held back.
        recall_after: recall20 of the one that predicts from now on, on the same.
        kept: whether that is the new one.
    """

    version: int
    drifted: bool
    recall_before: float
    recall_after: float
    kept: bool


@dataclass(frozen=True, slots=True)
class Rivals:
    """The old predictor and the new one of an update, and what tells them apart.

    Args:
        old, new: what each learned.
        corrections: of the old one and of the new one.
        drifted: whether the old one had drifted.
        judged: examples with responses that neither has learned from.
        scores: of the old one and of the new one, one for each of them.
    """

    old: Predictor
    new: Predictor
    corrections: tuple[Correction, Correction]
    drifted: bool
    judged: tuple[Example, ...] = ()
    scores: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())

    def with_examples(self, examples: Sequence[Example]) -> Rivals:
        """The same, judged by further examples."""
        prompts = [example.prompt for example in examples]
        old, new = (tuple(one.score for one in each.predict(prompts)) for each in (self.old, self.new))
        scores = (*self.scores[0], *old), (*self.scores[1], *new)
        return dataclasses.replace(self, judged=(*self.judged, *examples), scores=scores)

    def takes_new(self, seed: int) -> bool:
        """Whether the new one is to predict: it finds more by two standard errors; or the old one has drifted, and it does not
        find fewer by one."""
        more, fewer = compare_orders(*self.scores, self.judged, seed)
        return more >= _TWO_ERRORS or (self.drifted and fewer < _ONE_ERROR)


_ONE_ERROR, _TWO_ERRORS = 0.84, 0.975
"""Shares of random draws in which what is above 0 by one standard error, or two, is above 0."""


class LengthRanker:
    """Predicts the lengths of responses. Made by `train` or `load`; not thread-safe while `update` runs.

    Args:
        name: the method's name.
        method: the method.
        predictor: what it learned.
        version: number of updates.
        band: where recall and coverage are expected.
        memory: recent examples, which fill up small updates.
        setting: seed, models and progress; its deadline is not used.
        budget_s: seconds of an update.
        correction: of the predictor's lengths.
    """

    def __init__(
        self,
        name: str,
        method: Method,
        predictor: Predictor,
        *,
        version: int,
        band: Band,
        memory: Sequence[Example],
        setting: Setting,
        budget_s: float,
        correction: Correction = Correction(),  # noqa: B008 - it does not change
    ) -> None:
        self._name, self._method, self._predictor = name, method, predictor
        self._version, self._band, self._memory = version, band, tuple(memory)
        self._setting, self._budget_s, self._correction = setting, budget_s, correction
        self._rivals: Rivals | None = None

    @classmethod
    def train(
        cls,
        examples: Sequence[Example],
        method: str | Method = "auto",
        seed: int = 0,
        budget_s: float = 120,
        policy: str | Path | None = None,
        init: str | Path | None = None,
        *,
        progress: Progress = silent,
    ) -> LengthRanker:
        """Train a ranker.

        Args:
            examples: prompts with the lengths of their responses.
            method: a name, see `method_names`; a method with options of its own; or ``"auto"``, the one with the best recall20
                on prompts held back, among those that need no sample of a prompt. A warning names those whose library is not
                installed.
            seed: seed of all that is random.
            budget_s: seconds after which training ends with the best so far.
            policy: directory of the model that generates the responses, which ``hidden`` needs.
            init: directory of a causal language model, which ``sft`` fine-tunes; None: it begins from scratch.
            progress: called with what is being done.

        Raises:
            ExampleError: there are no examples, or for ``auto`` fewer than five different prompts.
            UnknownMethodError: no method has this name, or the object is none.
            RankerOptionError: the budget is not above 0, or a model that the method needs is not given.
            RankerModelError: a directory is no model that can be used.
            MissingExtraError: the method needs a library that is not installed.
        """
        known = check_examples(examples)
        setting = Setting(seed, Deadline(budget_s), _path(policy), _path(init), progress)
        if method == "auto":
            methods, unloaded = installed_methods(with_samples=False)
            return cls._chosen(methods, unloaded, known, setting, budget_s)
        chosen: object  # until it is looked at
        name, chosen = (method, load_method(method)) if isinstance(method, str) else (registered_name(method), method)
        if isinstance(chosen, type) or not callable(getattr(chosen, "fit", None)):
            raise UnknownMethodError(f"found {method!r:.80} as method, expected a name or an object of a method")
        if isinstance(chosen, Choosing) and chosen.alternatives(setting):
            return cls._chosen({name: chosen}, {}, known, setting, budget_s)
        others, aside = _divided(known, seed)
        predictor = chosen.fit(others, dataclasses.replace(setting, deadline=setting.deadline.part(LEARNING)))
        figures = (
            measured_with_samples(chosen, others, aside, setting)
            if chosen.needs_samples
            else measured(predictor, aside, setting.deadline)
        )
        return cls._finished(name, chosen, predictor, figures, known, aside, setting, budget_s)

    @classmethod
    def _chosen(
        cls,
        methods: Mapping[str, Method],
        unloaded: Mapping[str, str],
        known: Sequence[Example],
        setting: Setting,
        budget_s: float,
    ) -> LengthRanker:
        """The ranker of the method, or of the alternative, that is best on prompts held back."""
        if prompts_of(known) < LEAST_PROMPTS:
            raise ExampleError(
                f"found {prompts_of(known)} different prompts, expected at least {LEAST_PROMPTS} for the choice of 'auto', "
                "which holds a fifth back: name a method, or its objective"
            )
        learn, held = hold_out(known, HELD_BACK, setting.seed)
        trials = try_methods(methods, learn, held, setting)
        if lacking := {**unloaded, **{name: trials.left_out[name] for name in trials.lacking}}:
            why = "; ".join(dict.fromkeys(lacking.values()))
            warnings.warn(f"auto did not try {', '.join(lacking)}: {why}", stacklevel=3)
        return cls.of_trial(trials.best(), known, held, setting, budget_s)

    @classmethod
    def of_trial(
        cls, trial: MethodTrial, known: Sequence[Example], held: Sequence[Example], setting: Setting, budget_s: float
    ) -> LengthRanker:
        """The ranker of a method that was tried, with `held` of the `known` examples held back."""
        name = registered_name(trial.method) or trial.name
        return cls._finished(name, trial.method, trial.predictor, trial.held_back, known, held, setting, budget_s)

    @classmethod
    def _finished(
        cls,
        name: str,
        method: Method,
        predictor: Predictor,
        figures: Any,
        known: Sequence[Example],
        held: Sequence[Example],
        setting: Setting,
        budget_s: float,
    ) -> LengthRanker:
        if method.quick and setting.deadline.allows(0.0):  # from here on nothing is measured: learn from all
            predictor = method.fit(known, setting)
        return cls(
            name,
            method,
            predictor,
            version=0,
            band=Band(figures["recall20"], figures["coverage90"], prompts_of(held)),
            memory=latest(known),
            setting=setting,
            budget_s=budget_s,
        )

    @property
    def method(self) -> str:
        """The method's name; of ``auto`` the one chosen."""
        return self._name

    @property
    def objective(self) -> str | None:
        """What a language model learned, of ``auto`` the objective chosen; None for a method that has no choice of one."""
        return getattr(self._method, "learned", None)

    @property
    def version(self) -> int:
        """How many updates there were."""
        return self._version

    @property
    def needs_samples(self) -> bool:
        """Whether it says something of a prompt only after samples of that prompt (`update`)."""
        return self._method.needs_samples

    def predict(self, prompts: Sequence[str]) -> list[Prediction]:
        """One prediction for each prompt, in their order.

        Raises:
            ExampleError: a prompt is no text.
        """
        if isinstance(prompts, str) or not all(isinstance(prompt, str) for prompt in prompts):
            raise ExampleError("found a prompt that is no text, expected a list of texts")
        return [self._correction(one) for one in self._predictor.predict(list(prompts))] if prompts else []

    def rank(self, prompts: Sequence[str]) -> list[int]:
        """Positions of the prompts, those with the longest responses first."""
        return ranked(self.predict(prompts))

    def update(self, examples: Sequence[Example]) -> Update:
        """Learn from recent examples (StreamRL, section 5.2: online fine-tuning with recent generation results).

        A fifth of their prompts is held back to compare; with fewer than five prompts all are used for both. The new predictor
        predicts from now on if it finds more of the longest there by two standard errors, or if the old one has drifted and it
        does not find fewer by one; otherwise the old one goes on. `reconsider` decides again by what finishes later.
        Lengths are corrected by what was held back, or by all if that has too few samples. The version rises by one either way.

        Raises:
            ExampleError: there are no examples.
        """
        known = check_examples(examples)
        setting = dataclasses.replace(self._setting, deadline=Deadline(self._budget_s))
        its = dataclasses.replace(setting, deadline=setting.deadline.part(LEARNING))
        learn, held = self._held_back(known)
        drifted = self.drifted(held if self.needs_samples else known)
        prompts = [example.prompt for example in held]
        old, before = self._predictor, measure(self.predict(prompts), held)
        newer = old.update(recent(learn, self._memory), its)
        after = measure(newer.predict(prompts), held)
        checked = held if has_enough(held) else known
        corrections = _corrected(old, checked, self._correction), _corrected(newer, checked, Correction())
        rivals = Rivals(old, newer, corrections, drifted).with_examples(held)
        kept = self.needs_samples or rivals.takes_new(self._setting.seed)
        self._predictor, self._correction, self._rivals = (newer if kept else old), corrections[kept], rivals
        if self.needs_samples:  # what it knows of these prompts is all that it has
            self._predictor, self._rivals = newer.update(recent(known, self._memory), setting), None
        self._memory = latest(recent(known, self._memory))
        self._version += 1
        recalls = before["recall20"], after["recall20"]
        return Update(self._version, drifted, recalls[0], recalls[kept], kept)

    def reconsider(self, examples: Sequence[Example]) -> bool:
        """Decide again which predictor of the last update predicts, by these examples, too.

        What decides are all responses that neither has learned from: what the update held back, and all examples that this
        was given since, up to `JUDGED_EXAMPLES`. After that, and after `load`, there is nothing to decide.

        Args:
            examples: with responses that finished after those of the update.

        Returns:
            Whether another one predicts from now on than before.

        Raises:
            ExampleError: there are no examples.
        """
        known = check_examples(examples)
        if self._rivals is None:
            return False
        rivals = self._rivals.with_examples(known)
        kept, before = rivals.takes_new(self._setting.seed), self._predictor
        self._rivals = rivals if len(rivals.judged) < JUDGED_EXAMPLES else None
        self._predictor = rivals.new if kept else rivals.old
        if self._predictor is before:
            return False
        self._correction = _corrected(self._predictor, rivals.judged, rivals.corrections[kept])
        return True

    def _held_back(self, examples: Sequence[Example]) -> tuple[Sequence[Example], Sequence[Example]]:
        """What an update learns from, and what it compares on."""
        seed = self._setting.seed + self._version
        if self._method.needs_samples:
            known, asked = halves(examples, seed)[0]
            return (known, asked) if asked else (examples, examples)
        return _divided(examples, seed)

    def report(self, examples: Sequence[Example]) -> dict[str, Any]:
        """recall20, recall10, recall5, ceiling20, tau_b and coverage90 on examples, over trajectories.

        ceiling20 is None where no prompt has two samples. Compare recall20 with it, not with 1.

        Raises:
            ExampleError: there are no examples.
        """
        known = check_examples(examples)
        figures = measure(self.predict([example.prompt for example in known]), known)
        return {**figures, "ceiling20": ceiling20(known, self._setting.seed)}

    def drifted(self, examples: Sequence[Example]) -> bool:
        """Whether recall or coverage on recent examples has left its band, so that an update is due.

        Raises:
            ExampleError: there are no examples.
        """
        return self._band.left_by(*self._figures(examples))

    def watch(self, examples: Sequence[Example]) -> bool:
        """Whether an update is due, as `drifted`. Examples that say no narrow the band, up to `BAND_PROMPTS`.

        Args:
            examples: that it has not learned from, each given once.

        Raises:
            ExampleError: there are no examples.
        """
        figures = self._figures(examples)
        if self._band.left_by(*figures):
            return True
        if self._band.prompts < BAND_PROMPTS:
            self._band = self._band.with_figures(*figures)
        return False

    def _figures(self, examples: Sequence[Example]) -> tuple[float, float, int]:
        """Recall and coverage on examples, and the number of their prompts."""
        known = check_examples(examples)
        figures = measure(self.predict([example.prompt for example in known]), known)
        return figures["recall20"], figures["coverage90"], prompts_of(known)

    def save(self, directory: str | Path) -> None:
        """Write the ranker: tensors and JSON with checksums, nothing that runs when it is read.

        It holds the recent examples, with their prompts, since updates learn from them.

        Raises:
            RankerOptionError: the method is not registered, so that nobody could load the ranker.
        """
        state = {
            "version": self._version,
            "seed": self._setting.seed,
            "budget_s": self._budget_s if math.isfinite(self._budget_s) else None,
            "policy": None if self._setting.policy is None else str(self._setting.policy),
            "init": None if self._setting.init is None else str(self._setting.init),
            "objective": self.objective,
            "band": dataclasses.asdict(self._band),
            "correction": dataclasses.asdict(self._correction),
        }
        if not self._name:
            raise RankerOptionError(
                f"found a method of type {type(self._method).__name__}, expected one that an entry point registers: others "
                "cannot be loaded"
            )
        options = dataclasses.asdict(self._method)  # type: ignore[call-overload]  # a method is a dataclass
        write_ranker(Path(directory), SavedRanker(self._name, options, state, self._memory, self._predictor.files()))

    @classmethod
    def load(
        cls,
        directory: str | Path,
        *,
        policy: str | Path | None = None,
        init: str | Path | None = None,
        progress: Progress = silent,
    ) -> LengthRanker:
        """Read what `save` wrote.

        Args:
            directory: the directory.
            policy: where the policy is now, for ``hidden``; None for where it was.
            init: where the model is now that the adapters of ``sft`` are of; None for where it was.
            progress: called with what updates do.

        Raises:
            DamagedRankerError: there is no ranker, or it is incomplete or damaged.
            UnknownMethodError: its method is not installed.
            RankerModelError: the model that its adapters are of is not there.
            MissingExtraError: the method needs a library that is not installed.
        """
        return _loaded(cls, read_ranker(Path(directory)), _path(policy), _path(init), progress)


def check_saved(directory: str | Path, *, init: str | Path | None = None) -> None:
    """Check that a ranker can be loaded; no language model is, whose loading takes minutes.

    Args:
        directory: what `LengthRanker.save` wrote.
        init: where the model is now that the adapters of ``sft`` are of; None for where it was.

    Raises: as `LengthRanker.load`.
    """
    saved = read_ranker(Path(directory))
    method, state = saved.build_method(), saved.state
    if isinstance(method, Sft):
        method.check_saved(saved.files, _path(init) or _path(state["init"]))
    else:
        _loaded(LengthRanker, saved, None, None, silent)


def _loaded(
    kind: type[LengthRanker], saved: SavedRanker, policy: Path | None, init: Path | None, progress: Progress
) -> LengthRanker:
    state = saved.state
    try:
        budget_s = math.inf if state["budget_s"] is None else float(state["budget_s"])
        policy, init = policy or _path(state["policy"]), init or _path(state["init"])
        setting = Setting(int(state["seed"]), Deadline(budget_s), policy, init, progress)
        version, band, correction = int(state["version"]), Band(**state["band"]), Correction(**state["correction"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedRankerError(f"found a state that is none ({error!r}), expected what was saved") from error
    method = saved.build_method()
    return kind(
        saved.name,
        method,
        method.restore(saved.files, setting),
        version=version,
        band=band,
        memory=saved.memory,
        setting=setting,
        budget_s=budget_s,
        correction=correction,
    )


def _divided(examples: Sequence[Example], seed: int) -> tuple[Sequence[Example], Sequence[Example]]:
    """What is learned from and what is held back; of a few prompts all are both."""
    return (examples, examples) if prompts_of(examples) < LEAST_PROMPTS else hold_out(examples, HELD_BACK, seed)


def _corrected(predictor: Predictor, examples: Sequence[Example], otherwise: Correction) -> Correction:
    """The correction of a predictor by these examples, if they have enough samples."""
    if not has_enough(examples):
        return otherwise
    return correction_of(predictor.predict([example.prompt for example in examples]), examples)


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)
