"""What a run that has ended lost, trained on twice or paid twice: from its store's export, its event log and its summary.

trained.packed (the store) ──► every trajectory once, at the version that consumed it
events.jsonl              ──► batches whose version was made and stayed; turns and who answered them
summary.json              ──► what the controller counted: both must say the same
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace import contracts as c
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.pipeline.run.eventlog import Instant, read_log
from tailrace.trajstore import StoreFormatError, read_trained


@dataclass(frozen=True, slots=True)
class RunFindings:
    """What was found of a finished run.

    Args:
        steps: batches that were trained on.
        trained: trajectories that were trained on, as the store has them.
        lost: trajectories that were admitted and have no end.
        twice: trajectories that the store has as trained on more than once.
        contradictions: snapshots that contradict the controller.
        turns: turns that environments answered.
        turns_lost: turns that had ended and were not kept.
        turns_again: turns that were answered a second time.
        accuracy: after training, sampled; None where it was not measured.
        disagree: in words, where store, log and summary say different things.
    """

    steps: int
    trained: int
    lost: int
    twice: int
    contradictions: int
    turns: int
    turns_lost: int
    turns_again: int
    accuracy: float | None
    disagree: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, trained on twice, or told in two ways."""
        return not (self.lost or self.twice or self.turns_lost or self.contradictions or self.disagree)


def check_finished_run(directory: RunDirectory) -> RunFindings:
    """What a finished run lost.

    Raises:
        RunDirectoryError: it has not finished, or a file is missing or damaged.
    """
    if not directory.summary.exists():
        raise RunDirectoryError(f"{directory.summary}: no such file, expected a run that has finished")
    summary = read_json(directory.summary)
    trained = Counter(_trained(directory))
    answers = _answers(read_log(directory.events))
    again = sum(count - 1 for count in answers.values())
    return RunFindings(
        steps=summary["steps"],
        trained=len(trained),
        lost=summary["lost_trajectories"],
        twice=max(summary["consumed_twice"] or 0, sum(count - 1 for count in trained.values())),
        contradictions=summary["contradictions"],
        turns=summary["turns"],
        turns_lost=summary["turns_lost"],
        turns_again=again,
        accuracy=summary["eval_accuracy_after"],
        disagree=tuple(_disagreements(summary, trained)),
    )


def _trained(directory: RunDirectory) -> Iterable[str]:
    try:
        for row in read_trained(directory.trained, tokens=False):
            yield row["trajectory"]
    except (OSError, StoreFormatError) as error:
        raise RunDirectoryError(
            f"{directory.trained}: {error}; expected the trajectories that were trained on"
        ) from error


def _answers(log: Iterable[Instant]) -> Counter[tuple[str, int, int]]:
    """How often each turn was answered. One of a trajectory that was dropped and began anew is another turn."""
    found: Counter[tuple[str, int, int]] = Counter()
    lives: Counter[str] = Counter()
    for instant in log:
        for event in instant.events:
            if isinstance(event, c.Turned):
                found[event.trajectory, lives[event.trajectory], event.turn] += 1
        for command in instant.commands:
            if isinstance(command, c.Abort):
                lives.update(command.trajectories)
    return found


def _disagreements(summary: Mapping[str, Any], trained: Mapping[str, int]) -> Iterable[str]:
    if len(trained) != summary["trained_trajectories"]:
        yield f"the store has {len(trained)} trajectories as trained on, the summary {summary['trained_trajectories']}"
    prompts = summary["prompts"]
    ended = prompts["trained"] + prompts["failed"] + sum(prompts["filtered"].values()) + prompts["lost"]
    if summary["steps"] and ended > prompts["admitted"]:
        yield f"{ended} prompts have ended, and {prompts['admitted']} were admitted"
