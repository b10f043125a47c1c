"""The ranker: predicts the lengths of responses, and learns from those that finish in the run (StreamRL, section 5.2).

    Predict ──► texts (data role) ──► LengthRanker.predict ──► Predicted, or PredictionFailed for what has no length
                                            ▲
    responses that finished (data role) ────┴─ a thread looks every `look_s`: train once there is enough, then update when
                                               recall or coverage on the newest has left its band; what finishes after an
                                               update decides again whether the old or the new one predicts

It learns whether it is asked or not, and answers meanwhile with what it knew before. What it has learned is saved, so that its
successor goes on from there. A prompt counts once all its samples have finished: those that finish first are the shortest.
"""

from __future__ import annotations

import copy
import logging
import math
import shutil
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.contracts import Activity, Command, Event, Predict, Predicted, PredictionFailed
from tailrace.pipeline.roles.calls import DATA_DOOR, MOST, FinishedLength
from tailrace.ranker import (
    DamagedRankerError,
    Example,
    ExampleError,
    LengthRanker,
    Method,
    Prediction,
    PredictionError,
    RankerModelError,
    RankerOptionError,
    UnknownMethodError,
    check_lengths,
)
from tailrace.ranker.drift import WINDOW_PROMPTS, latest
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.doors import Ready, Role
from tailrace.runtime.executor.seam import MemberStart
from tailrace.runtime.role_worker import RoleWorker

TRAINED, UPDATED = "trained", "updated"
"""Phases of the ranker's activity: what it has just done."""

_CLOSE_S = 5.0
_QUESTIONS = 8
"""The newest ones are answered. A run asks for what it may launch soon in as many: older ones are of what it has launched."""
_LATE = f"found {_QUESTIONS} newer questions, expected fewer: the ranker is slower than the run"
_AT_ONCE = 16  # prompts, so that a slow ranker is heard of meanwhile
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RankerSettings:
    """Settings of the ranker.

    Args:
        saved: directory of what it learns in this run, one directory each time; it need not exist.
        path: directory of a ranker to begin with; None: it is trained on responses of this run.
        method: what is trained, with its options or by its name, see `tailrace.ranker.method_names`; ``"auto"`` tries several.
        prompts: different prompts with new finished responses after which it is trained, or asks whether it has drifted.
        budget_s: seconds that one training or update may take.
        samples: finished responses with which a prompt counts.
        look_s: seconds between two looks for finished responses.
        policy: directory of the model that generates the responses, for methods that read it.
        init: directory of a language model that is fine-tuned; None: it begins from scratch.
        seed: of training.
    """

    saved: Path
    path: Path | None
    method: str | Method
    prompts: int
    budget_s: float
    samples: int = 1
    look_s: float = 2.0
    policy: Path | None = None
    init: Path | None = None
    seed: int = 0


class RankerRole:
    """Predicts, and learns beside that."""

    def __init__(self, settings: RankerSettings, start: MemberStart) -> None:
        self._settings = settings
        self._data = DATA_DOOR.open(start.data, start.data_s)
        self._ranker, self._notes = _newest(settings)
        if self._ranker is None and settings.path is not None:
            self._ranker = LengthRanker.load(settings.path, policy=settings.policy, init=settings.init)
        self._seen = 0
        self._new: list[FinishedLength] = []
        self._known = 0  # prompts all of whose samples have finished since it learned last
        self._learned = 0
        self._changing = threading.Lock()  # held while what predicts changes, and while what it predicted is told
        self._told_alike = False
        self._last: tuple[int, ...] = ()  # questions
        self._worker = RoleWorker("predictions", self._carry_out, newest_first=True)
        self._closing = threading.Event()
        self._learner = threading.Thread(target=self._look_on, args=(settings.look_s,), name="learning", daemon=True)
        self._learner.start()

    # ---- for the executor -----------------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """Returns once the role is up."""
        return Ready(notes=self._notes)

    def submit(self, commands: Sequence[Command]) -> None:
        """Answer each `Predict`, the newest first: a ranker that is slower than the run has no prediction for some."""
        asked = (command.seq for command in commands if isinstance(command, Predict))
        self._last = (*self._last, *asked)[-_QUESTIONS:]
        self._worker.submit(commands)
        for late in self._worker.take_out(lambda command: isinstance(command, Predict) and self._is_late(command)):
            assert isinstance(late, Predict)
            self._worker.put(*(PredictionFailed(prompt, _LATE, late.seq) for prompt in late.prompts))

    def events(self, timeout_s: float) -> list[Event]:
        """Answers and what was learned since the last call; waits up to `timeout_s` seconds for the first."""
        return self._worker.events(timeout_s)

    def adopt(self) -> None:
        """Prepare for another controller."""
        self._worker.forget()

    def close(self) -> None:
        """Answer nothing more. What is being learned is lost."""
        self._closing.set()
        self._worker.close(_CLOSE_S)

    # ---- predictions, in the worker's thread ----------------------------------------------------------------------

    def _carry_out(self, command: Command) -> None:
        if not isinstance(command, Predict):
            raise RoleError(f"the ranker got {type(command).__name__} {command.seq}, expected Predict")
        for first in range(0, len(command.prompts), _AT_ONCE):
            prompts, told = command.prompts[first : first + _AT_ONCE], False
            # Anew if it has learned meanwhile: the answer would be taken for one of what predicts from then on.
            while not told:
                if self._worker.closing:  # a thread of this process beside its successor's
                    return
                learned = self._learned
                answers = self._answers(command, prompts)
                with self._changing:
                    told = learned == self._learned
                    if told:
                        self._worker.put(*answers)

    def _answers(self, command: Predict, prompts: Sequence[int]) -> list[Event]:
        """What there is to say of some of a question's prompts."""
        ranker, why = self._ranker, ""
        if ranker is None:
            why = f"found finished responses to {self._known} prompts, expected {self._settings.prompts} to learn from"
        elif self._is_late(command):
            why = _LATE
        if ranker is None or why:
            return [PredictionFailed(prompt, why, command.seq) for prompt in prompts]
        found = _predict(ranker, self._data.prompt_texts(prompts))
        return [_event(prompt, each, command.seq) for prompt, each in zip(prompts, found, strict=True)]

    def _is_late(self, command: Predict) -> bool:
        """Whether there are so many newer questions that its prompts were launched."""
        return command.seq not in self._last

    # ---- learning, in a thread of its own -------------------------------------------------------------------------

    def _look_on(self, period_s: float) -> None:
        try:
            while not self._closing.wait(period_s):
                self._look()
        except BaseException as error:
            # Not swallowed: `events` raises this error.
            self._worker.fail(error)

    def _look(self) -> None:
        """Take over what has finished since, and learn if it is enough."""
        fresh = self._data.finished_lengths(self._seen)
        if not fresh:
            return
        self._seen = fresh[-1].number
        self._new = [*self._new, *fresh][-MOST:]
        counts = Counter(length.prompt for length in self._new)
        whole = {prompt for prompt, count in counts.items() if count >= self._settings.samples}
        self._known = len(whole)
        if len(whole) < self._settings.prompts:
            return
        examples = _examples([length for length in self._new if length.prompt in whole])
        if self._ranker is None:
            try:
                check_lengths(examples)
            except ExampleError as error:  # they stay: what finishes later may differ from them
                if not self._told_alike:
                    self._told_alike = True
                    self._warn(error)
                return
        self._new = [length for length in self._new if length.prompt not in whole]
        self._learn(examples)

    def _warn(self, error: Exception) -> None:
        _log.warning("nothing is learned of these responses: %s", error)

    def _learn(self, examples: Sequence[Example]) -> None:
        ranker = self._ranker
        try:
            if ranker is None:
                newer, did = self._train(examples), TRAINED
            else:
                newer, did = copy.copy(ranker), UPDATED  # an update replaces what it knows, it changes none of it
                # More have finished if it was busy, or is a successor.
                newest = latest(examples, self._settings.prompts)
                if not newer.reconsider(newest):
                    if not newer.watch(newest):
                        self._ranker = newer
                        return
                    newer.update(latest(examples, max(self._settings.prompts, WINDOW_PROMPTS)))
        except (RankerOptionError, PredictionError) as error:
            # The machine may have been busy, or what was learned says what cannot be: the next prompts are tried, too.
            self._warn(error)
            return
        if self._closing.is_set():
            return
        try:
            _save(newer, self._settings.saved)
        except OSError as error:
            _log.warning(
                "%s: could not be written: %s; what is learned predicts and is not saved",
                self._settings.saved,
                error.strerror,
            )
        with self._changing:
            self._ranker = newer
            self._learned += 1
            self._worker.put(Activity("ranker", "0", did, self._learned))

    def _train(self, examples: Sequence[Example]) -> LengthRanker:
        return LengthRanker.train(
            examples,
            method=self._settings.method,
            seed=self._settings.seed,
            budget_s=self._settings.budget_s,
            policy=self._settings.policy,
            init=self._settings.init,
        )


def _save(ranker: LengthRanker, saved: Path) -> None:
    """Save a ranker beside the last one, which stays until the one after: this process may be killed at any time.

    Raises:
        OSError: the disk is full or broken. What was written is gone, the last one stays.
    """
    numbers = saved_rankers(saved)
    directory = saved / str(numbers[0] + 1 if numbers else 1)
    try:
        ranker.save(directory)
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    for old in numbers[1:]:
        shutil.rmtree(saved / str(old), ignore_errors=True)


def _newest(settings: RankerSettings) -> tuple[LengthRanker | None, tuple[str, ...]]:
    """The newest ranker that can be used, None if there is none, and why newer ones are not, a line each."""
    notes: list[str] = []
    for number in saved_rankers(settings.saved):
        try:
            ranker = LengthRanker.load(settings.saved / str(number), policy=settings.policy, init=settings.init)
        except (DamagedRankerError, RankerModelError, UnknownMethodError) as error:
            notes.append(f"what the ranker has learned is not used: {error}")
        else:
            return ranker, tuple(notes)
    return None, tuple(notes)


def saved_rankers(saved: Path) -> list[int]:
    """Numbers of the rankers in a directory, newest first. What has another name is somebody else's."""
    return sorted([int(each.name) for each in saved.glob("[0-9]*") if each.name.isdecimal()], reverse=True)


def _examples(lengths: Sequence[FinishedLength]) -> list[Example]:
    """One example for each prompt and version, in the order of their first responses."""
    of: dict[tuple[str, int], list[FinishedLength]] = {}
    for length in lengths:
        of.setdefault((length.prompt, length.version), []).append(length)
    return [
        Example(prompt, tuple([one.tokens for one in same]), tuple([one.truncated for one in same]), version=version)
        for (prompt, version), same in of.items()
    ]


def _predict(ranker: LengthRanker, texts: Sequence[str]) -> list[Prediction | PredictionError]:
    """A prediction for each text, or why there is none: one that cannot be does not cost the others theirs."""
    try:
        return list(ranker.predict(texts))
    except PredictionError as error:
        if len(texts) == 1:
            return [error]
        return [each for text in texts for each in _predict(ranker, [text])]


def _event(prompt: int, found: Prediction | PredictionError, seq: int) -> Event:
    if isinstance(found, PredictionError):
        return PredictionFailed(prompt, str(found), seq)
    if not (found.p50 >= 1 and math.isfinite(found.p50) and found.p90 >= found.p50 and math.isfinite(found.p90)):
        return PredictionFailed(
            prompt, f"found p50 {found.p50} and p90 {found.p90} tokens, expected 1 <= p50 <= p90", seq
        )
    if not math.isfinite(found.score):
        return PredictionFailed(prompt, f"found a score of {found.score}, expected a finite number", seq)
    # No response has less than one token: what scores lower is as short as can be.
    return Predicted(prompt, found.p50, seq, found.p90, max(1.0, found.score))


if TYPE_CHECKING:
    _: type[Role] = RankerRole  # mypy checks it here
