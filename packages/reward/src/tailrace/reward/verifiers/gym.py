"""Verifier ``reasoning-gym``: the score function of a reasoning-gym task. Needs the extra ``reasoning-gym``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from tailrace.reward.errors import ScoringError
from tailrace.reward.extraction import final_answer
from tailrace.reward.gym import import_reasoning_gym
from tailrace.reward.items import said

# Imported with the module, since the import takes seconds: loading a verifier has a deadline of its own, and the first
# verification should not bear that time.
reasoning_gym = import_reasoning_gym()

# Some tasks give part of the score to an answer that merely contains the right one ("212" for "12" scores 0.67), and 0.01
# to 0.05 to junk. So only a full score counts as right unless the row says otherwise.
_RIGHT = 0.99


@cache
def _scorer(dataset: str) -> Callable[[str | None, Mapping[str, Any]], float]:
    try:
        score: Callable[[str | None, Mapping[str, Any]], float] = reasoning_gym.get_score_answer_fn(dataset)
    except ValueError as error:
        raise ScoringError(f"found the task {dataset!r}, expected one that reasoning-gym registers: {error}") from error
    return score


def reasoning_gym_verifier(response: str, answer: str, metadata: Mapping[str, Any]) -> float:
    r"""The task's own score of the tagged (or boxed) answer.

    Args:
        response: the decoded response.
        answer: the reference answer.
        metadata: ``dataset``, the task's name in reasoning-gym; ``entry``, the task's metadata, if its score function reads
            it; ``partial``, true to keep scores between 0 and 1 (otherwise a full score is 1.0 and any other 0.0).

    Raises:
        ScoringError: the metadata is incomplete, the task unknown, or its score function raises on the reference answer.
    """
    dataset = metadata.get("dataset")
    if not isinstance(dataset, str):
        raise ScoringError(
            f"found metadata with {sorted(metadata)}, expected the key 'dataset' with a reasoning-gym task name"
        )
    score = _scorer(dataset)
    found = final_answer(said(response, metadata))
    if found is None:
        return 0.0
    entry = {"answer": answer, "metadata": {"source_dataset": dataset, **(metadata.get("entry") or {})}}
    try:
        value = float(score(found, entry))
    except Exception as error:
        # Several tasks raise on a malformed answer, which is then wrong. If they raise on the reference answer too, the
        # verifier is broken.
        try:
            score(answer, entry)
        except Exception as broken:
            raise ScoringError(
                f"reasoning-gym's scorer of {dataset!r} raises on the reference answer: {type(broken).__name__}: {broken}"
            ) from error
        return 0.0
    if metadata.get("partial"):
        return value
    return float(value >= _RIGHT)
