"""Every method on what was held out: prompts, families or difficulties. What it predicts is kept, one file a training.

rest ─┬─ four fifths: every method learns (quick ones from all of the rest, as a ranker does)
      └─ a fifth: held back; `auto` is the method that is best there
held out: predicted, seen by nothing before
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from length_ranking.mix import BANDS, FAMILIES, Problem
from length_ranking.stages import Clock, write_whole

from tailrace.contracts import MissingExtraError
from tailrace.ranker import Example, RankerOptionError
from tailrace.ranker.methods import Deadline, Method, Setting, configured
from tailrace.ranker.prediction import Prediction
from tailrace.ranker.splits import hold_out
from tailrace.ranker.trials import installed_methods, try_methods

SPLITS = ("prompts", "families", "bands")
HELD = 0.2
SEEDS = (0, 1, 2)
"""For families and bands each is a fold: together they hold out every one once."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a method predicted for what was held out, and which samples it is measured on.

    Args:
        score, p50, p90: by index of the problem.
        lengths: the samples that count, by index of the problem; as many for each.
    """

    score: Mapping[int, float]
    p50: Mapping[int, float]
    p90: Mapping[int, float]
    lengths: Mapping[int, Sequence[int]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A method in one split with one seed.

    Args:
        recall20_held_back: by which `auto` chooses.
        train_s: seconds of processor time that it learned for.
        needs_samples: whether it predicts from a prompt's own samples.
        ways: one; two for a method that needs samples of a prompt, which knows one half of them and is asked for the other.
    """

    recall20_held_back: float
    train_s: float
    needs_samples: bool
    ways: Sequence[Predicted]


@dataclass(frozen=True, slots=True)
class Given:
    """Language models that are fine-tuned.

    Args:
        models: their directories, of different names.
        objectives: what each learns.
        options: of ``sft``, such as a number of steps.
    """

    models: Sequence[Path] = ()
    objectives: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def methods(self) -> dict[str, tuple[Method, Path]]:
        """Each model with each objective, by ``sft:OBJECTIVE NAME``."""
        return {
            f"sft:{objective} {model.name}": (configured("sft", {**self.options, "objective": objective}), model)
            for model in self.models
            for objective in self.objectives
        }


def held_out(split: str, seed: int, problems: Sequence[Problem]) -> set[int]:
    """The indices of the problems that are held out."""
    if split == "prompts":
        prompts = [Example(problem.prompt, (1,)) for problem in problems]
        chosen = {example.prompt for example in hold_out(prompts, HELD, seed)[1]}
        return {index for index, problem in enumerate(problems) if problem.prompt in chosen}
    if split == "families":
        names = [family.name for family in FAMILIES]
        random.Random(0).shuffle(names)
        fold = set(names[seed % len(SEEDS) :: len(SEEDS)])
        return {index for index, problem in enumerate(problems) if problem.family in fold}
    band = BANDS[-1 - seed % len(BANDS)]
    return {index for index, problem in enumerate(problems) if problem.band == band}


def outcomes(
    directory: Path,
    split: str,
    seed: int,
    problems: Sequence[Problem],
    examples: Mapping[int, Example],
    policy: Path,
    train_s: float,
    clock: Clock,
    names: Sequence[str],
    given: Given = Given(),
) -> dict[str, Outcome]:
    """Every method that is named and installed, the simplest first. Those that are on disk are not trained again.

    With language models that are given, there is a row for each of their objectives, ``sft:OBJECTIVE DIR``.

    Args:
        directory: of the files.
        split, seed: see `held_out`.
        problems: all of the mix.
        examples: of each, by index.
        policy: directory of the model that generated them.
        train_s: seconds of processor time of one training.
        clock: what is left of the time.
        names: of the methods.
        given: language models that ``sft`` fine-tunes.

    Raises:
        OutOfTimeError: not all methods are done.
    """
    asked = held_out(split, seed, problems)
    rest = [examples[index] for index in examples if index not in asked]
    learn, back = hold_out(rest, HELD, seed + 1)
    methods, left_out = installed_methods(with_samples=True)
    for name, why in left_out.items():
        clock.say(split, f"{name} is left out: {why}", last=True)
    found = {}
    asked_for = {name: (method, None) for name, method in methods.items() if name in names}
    for name, (method, init) in {**asked_for, **given.methods()}.items():
        file = directory / f"{split}-{seed}-{name.replace(':', '-').replace(' ', '-')}.json"
        if not file.exists():
            clock.check(1.2 * train_s if not method.quick else 0.0)
            clock.say(split, f"seed {seed}, {name}", last=True)
            measured = {index: examples[index] for index in sorted(asked)}
            try:
                write_whole(file, _tried(name, method, learn, back, rest, measured, seed, policy, train_s, init))
            except (MissingExtraError, RankerOptionError) as error:
                clock.say(split, f"{name} is left out: {error}", last=True)
                continue
        found[name] = _read(file, examples)
    return found


def chosen(found: Mapping[str, Outcome]) -> str:
    """What `auto` would take: the best recall20 held back, of those that need no sample of a prompt; the simplest of equals."""
    able = {name: one for name, one in found.items() if not one.needs_samples}
    return max(able, key=lambda name: able[name].recall20_held_back)


def _tried(
    name: str,
    method: Method,
    learn: Sequence[Example],
    back: Sequence[Example],
    rest: Sequence[Example],
    asked: Mapping[int, Example],
    seed: int,
    policy: Path,
    train_s: float,
    init: Path | None,
) -> dict[str, Any]:
    # Processor time: what else the machine does at the moment changes no figure.
    setting = Setting(seed, Deadline(train_s, time.process_time), policy, init)
    trials = try_methods({name: method}, learn, back, setting)
    if name in trials.left_out:
        raise RankerOptionError(trials.left_out[name])
    (trial,) = trials.tried
    fresh = replace(setting, deadline=Deadline(train_s, time.process_time))
    prompts = [example.prompt for example in asked.values()]
    ways: list[tuple[tuple[int, int], Sequence[Prediction]]] = []
    samples = len(next(iter(asked.values())).lengths)
    if method.needs_samples:
        half = samples // 2
        for known, counted in (((0, half), (half, samples)), ((half, samples), (0, half))):
            predictor = method.fit([*rest, *(_part(example, *known) for example in asked.values())], fresh)
            ways.append((counted, predictor.predict(prompts)))
    else:
        predictor = method.fit(rest, fresh) if method.quick else trial.predictor
        ways.append(((0, samples), predictor.predict(prompts)))
    return {
        "recall20_held_back": trial.held_back["recall20"],
        "train_s": trial.train_s,
        "needs_samples": method.needs_samples,
        "ways": [
            {
                "samples": counted,
                "predictions": [
                    [index, found.score, found.p50, found.p90] for index, found in zip(asked, predictions, strict=True)
                ],
            }
            for counted, predictions in ways
        ],
    }


def _part(example: Example, first: int, last: int) -> Example:
    return replace(example, lengths=example.lengths[first:last], truncated=example.truncated[first:last])


def _read(file: Path, examples: Mapping[int, Example]) -> Outcome:
    data = json.loads(file.read_text())
    ways = []
    for way in data["ways"]:
        rows, (first, last) = way["predictions"], way["samples"]
        score, p50, p90 = ({row[0]: row[at] for row in rows} for at in (1, 2, 3))
        ways.append(Predicted(score, p50, p90, {row[0]: examples[row[0]].lengths[first:last] for row in rows}))
    return Outcome(data["recall20_held_back"], data["train_s"], data["needs_samples"], ways)
