"""What a method is: the protocols of the entry-point group ``tailrace.predictor``, and finding one by name.

                fit(examples, setting)
Method ─────────────────────────────────────────► Predictor ── predict(prompts) ──► predictions
  ▲    restore(files, setting)                       │
  └──────────────────────────────────────────────────┘ files()             update(examples, setting) ──► another Predictor
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tailrace.contracts import MissingExtraError, PluginError
from tailrace.contracts.errors import expected_one_of
from tailrace.contracts.plugins import load, names
from tailrace.ranker.errors import RankerOptionError, UnknownMethodError
from tailrace.ranker.example import Example
from tailrace.ranker.prediction import Prediction


class Deadline:
    """When training must have ended.

    Args:
        budget_s: seconds from now on.
        clock: returns seconds.

    Raises:
        RankerOptionError: the budget is not above 0.
    """

    def __init__(self, budget_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        if math.isnan(budget_s) or budget_s <= 0:
            raise RankerOptionError(f"found budget_s = {budget_s!r}, expected seconds above 0")
        self._clock = clock
        self._end = clock() + budget_s

    @property
    def left_s(self) -> float:
        """Seconds that are left; below 0 when it has passed."""
        return self._end - self._clock()

    def allows(self, seconds: float) -> bool:
        """Whether something that takes so long ends in time."""
        return seconds < self.left_s

    def now(self) -> float:
        """The clock, in seconds."""
        return self._clock()

    def part(self, share: float) -> Deadline:
        """A deadline after this share of what is left."""
        return Deadline(max(self.left_s * share, 1e-9), self._clock)


GROUP = "tailrace.predictor"

Progress = Callable[[Mapping[str, Any]], None]
"""Called with what is being done: ``method``, ``phase``, and where they make sense ``step``, ``steps``, ``loss``."""


def silent(line: Mapping[str, Any]) -> None:
    """Report no progress."""
    del line


@dataclass(frozen=True, slots=True)
class Setting:
    """What a method gets beside the examples.

    Args:
        seed: seed of all that is random.
        deadline: when `fit` or `update` must have returned.
        policy: directory of the model that generates the responses; None if it is not known.
        init: directory of a causal language model to begin with; None for a small one from a configuration.
        progress: called every now and then.
    """

    seed: int
    deadline: Deadline
    policy: Path | None = None
    init: Path | None = None
    progress: Progress = field(default=silent, compare=False)


class Predictor(Protocol):
    """A trained predictor. It does not change: an update gives another one, so that what serves is never half updated."""

    def predict(self, prompts: Sequence[str]) -> list[Prediction]:
        """One prediction for each prompt, in their order. A prompt's does not depend on the others, up to rounding."""
        ...

    def update(self, examples: Sequence[Example], setting: Setting) -> Predictor:
        """A predictor that has learned from these examples, too, within the deadline."""
        ...

    def files(self) -> dict[str, bytes]:
        """All that `Method.restore` needs, by file name: JSON (``.json``) and tensors (``.safetensors``) only."""
        ...


@runtime_checkable
class Method(Protocol):
    """A way to predict: a frozen dataclass whose fields are its options, all with defaults and of JSON's types.

    `needs_samples` says whether it knows something of a prompt only after samples of that prompt were among the examples;
    `auto` never chooses such a method, since new prompts have none. `quick` says whether it learns in seconds: others get a
    part of the budget each.
    """

    @property
    def needs_samples(self) -> bool:
        """Whether it predicts a prompt from samples of that prompt."""
        ...

    @property
    def quick(self) -> bool:
        """Whether it learns in seconds."""
        ...

    def fit(self, examples: Sequence[Example], setting: Setting) -> Predictor:
        """Learn. Same examples, options and seed give the same predictor, unless the deadline ended it; then it is the best
        one so far.

        Raises:
            RankerOptionError: `Setting.policy` or `Setting.init` is needed and missing, or the deadline allows no step.
            MissingExtraError: a library is not installed.
        """
        ...

    def restore(self, files: Mapping[str, bytes], setting: Setting) -> Predictor:
        """The predictor that wrote these files.

        Raises:
            DamagedRankerError: they are not what such a predictor writes.
        """
        ...


@runtime_checkable
class Choosing(Method, Protocol):
    """A method that leaves a choice to what is measured on prompts held back, such as its objective."""

    def alternatives(self, setting: Setting) -> Mapping[str, Method]:
        """What there is to choose from, by names that say what differs; none where nothing is left to choose.

        Raises:
            RankerModelError: `Setting.init` cannot be used, which shows before anything is trained.
        """
        ...


def expanded(methods: Mapping[str, Method], setting: Setting) -> dict[str, Method]:
    """Methods with each choice as methods of their own, ``NAME:ALTERNATIVE``.

    Raises:
        RankerModelError: `Setting.init` cannot be used.
    """
    found: dict[str, Method] = {}
    for name, method in methods.items():
        try:
            choice = method.alternatives(setting) if isinstance(method, Choosing) else {}
        except MissingExtraError:  # its own `fit` says so
            choice = {}
        found |= {f"{name}:{which}": one for which, one in choice.items()} or {name: method}
    return found


def method_names() -> list[str]:
    """The names of all installed methods."""
    return names(GROUP)


def configured(name: str, options: Mapping[str, Any]) -> Method:
    """A method by its name, with some options.

    Raises:
        RankerOptionError: it has no such option, or a value is outside its range.
        UnknownMethodError, PluginError, MissingExtraError: see `load_method`.
    """
    method = load_method(name)
    known = {each.name: each for each in fields(method)}  # type: ignore[arg-type]  # a method is a dataclass
    for option, value in options.items():
        if option not in known:
            raise RankerOptionError(
                f"found the option {option!r} of the method {name!r}, {expected_one_of(option, known)}"
            )
        default = getattr(method, option)
        wide = (int, float) if isinstance(default, float) or default is None else type(default)
        if not isinstance(value, wide) or isinstance(value, bool) != isinstance(default, bool):
            kind = "a number" if wide == (int, float) else type(default).__name__
            raise RankerOptionError(f"found {option} = {value!r} of the method {name!r}, expected {kind}")
    return replace(method, **options)  # type: ignore[type-var]


def load_method(name: str) -> Method:
    """A method by its name, with default options.

    Raises:
        UnknownMethodError: no distribution registers it.
        PluginError: its module cannot be imported, two distributions register it, or it is no method.
        MissingExtraError: it needs a library that is not installed.
    """
    if name not in (known := method_names()):
        raise UnknownMethodError(f"found the method {name!r}, {expected_one_of(name, ['auto', *known])}")
    method = load(GROUP, name)()
    if not isinstance(method, Method):
        raise PluginError(f"plugin {name!r} of group {GROUP} gives {type(method).__name__}, expected a Method")
    return method
