"""Checks a run's prompts before it starts: each row of its files, and whether its verifier pays a right answer to the first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from tailrace.contracts import plugins
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError, Gathered, config_error
from tailrace.pipeline.roles.prompts import item_metadata
from tailrace.pipeline.run.environment_setup import environment_of
from tailrace.pipeline.run.prompts.reading import FoundPrompts, read_files
from tailrace.pipeline.run.scorer_setup import check_judge, check_sandbox, score_settings
from tailrace.reward import Kind, Outcome, RewardScheduler, ScoreItem, Scorer, ScoringFailure, kind_of
from tailrace.reward.tasks import get_task, task_names
from tailrace.reward.verifiers import is_reference, written
from tailrace.trajstore import Prompt

_TRY_S = 60.0  # seconds for trying right answers; a slow verifier is tried with fewer
_SOLUTIONS = ("solution", "reference_solution", "response", "completion", "output")


def check_data(config: RunConfig) -> FoundPrompts | None:
    """Check every row of a configuration's prompt files, if it has some. Returns what they hold.

    Raises:
        ConfigError: rows are wrong, the verifier cannot judge the first one, or programs are to be scored and no sandbox works
            here. The message has a line for each.
    """
    if config.task.generated:
        known = [get_task(name) for name in config.task.generated if name in task_names()]
        if any(kind_of(task.verifier) is Kind.CODE for task in known):
            check_sandbox(config)
        return None
    if not config.task.training:
        return None
    gathered = Gathered()
    found = read_files(config, config.model.path)
    gathered.add(*found.faults)
    if any(kind_of(verifier) is Kind.CODE for verifier in found.verifiers):
        with gathered.check():
            check_sandbox(config)
            _try_references(config, found.references)
    if any(kind_of(verifier) is Kind.JUDGE for verifier in found.verifiers):
        with gathered.check():
            check_judge(config)
    for name, source in config.task.training.items():
        rows: dict[str, list[tuple[str, Prompt]]] = {}
        for where, prompt in found.first.get(name, []):
            verifier = prompt.verifier or config.task.verifier
            if _known(verifier) and kind_of(verifier) is Kind.MATH:
                rows.setdefault(verifier, []).append((where, prompt))
        for verifier, tried in rows.items():
            with gathered.check():
                found.notes += _try_verifier(config, verifier, source.path, tried)
    gathered.done()
    return found


def _known(verifier: str) -> bool:
    """Whether a verifier exists; otherwise another check reports it."""
    return is_reference(verifier) or verifier in plugins.names("tailrace.verifier")


def _try_verifier(config: RunConfig, name: str, path: Path, rows: list[tuple[str, Prompt]]) -> list[str]:
    """Judge right answers of some rows by their verifier, in a separate process, until one of each row earns something.

    Returns:
        A line if it pays none of the ways in which a right answer may be written. Where an environment answers, it may judge
        what no single response shows, so nothing is said of it.

    Raises:
        ConfigError: it can judge no response of the first row.
    """
    own = {name: name} if is_reference(name) else {}
    turns = environment_of(config) is not None
    until, unpaid, tried = time.monotonic() + _TRY_S, [], 0
    with Scorer(own, timeout_s=config.deadlines.verify_s) as scorer:

        def judged(prompt: Prompt, response: str) -> Outcome:
            item = ScoreItem("", response, prompt.answer, name, item_metadata(prompt), prompt.prompt)
            return scorer.score([item])[0]

        for where, prompt in rows:
            if time.monotonic() > until:
                break
            responses = [*written(prompt.answer), *_solutions(prompt)]
            outcomes = (judged(prompt, response) for response in (responses[:1] if turns else responses))
            paid, failure = _first_paid(outcomes, _reward(judged(prompt, "")), until)
            if failure is not None and not tried:
                raise ConfigError(f"key 'task.verifier': tried on the first row of {path}: {failure}")
            tried += 1
            unpaid += [] if paid else [where]
    if turns or len(unpaid) < tried:
        return []
    example = next(written(rows[0][1].answer))
    said = (
        f"verifier {name}: it paid nothing for a right answer to the first {tried} rows of {path}, written in a tag "
        f"({example:.80}), a box, bold, a sentence, alone, and as the row has it; does it want another form or column?"
    )
    return [said]


def _first_paid(outcomes: Iterator[Outcome], nothing: float, until: float) -> tuple[bool, str | None]:
    """Whether one of the outcomes pays more than no answer does, and why there was none, if each was a failure."""
    failure, failed = "", True
    for outcome in outcomes:
        if isinstance(outcome, ScoringFailure):
            failure = failure or outcome.reason
        else:
            failed = False
            if outcome.correct or outcome.reward > nothing:
                return True, None
        if time.monotonic() > until:
            break
    return False, failure if failed else None


def _reward(outcome: Outcome) -> float:
    return 0.0 if isinstance(outcome, ScoringFailure) else outcome.reward


def _solutions(prompt: Prompt) -> list[str]:
    """Reference solutions among a row's further columns."""
    texts = (item_metadata(prompt).get(column) for column in _SOLUTIONS)
    return [text for text in texts if isinstance(text, str) and text.strip()]


def _try_references(config: RunConfig, references: list[tuple[str, Prompt]]) -> None:
    """Run the first reference solutions: tests that they fail would give no response a reward."""
    items = [ScoreItem(where, prompt.answer, "", "code", item_metadata(prompt)) for where, prompt in references]

    async def outcomes() -> list[Outcome]:
        async with RewardScheduler(code=score_settings(config, ()).code) as scheduler:
            return [outcome async for outcome in scheduler.score(items)]

    lines = []
    for outcome in asyncio.run(outcomes()):
        if isinstance(outcome, ScoringFailure):
            lines.append(f"{outcome.trajectory}: the reference solution could not be run: {outcome.reason}")
        elif not outcome.correct:
            over = f", it was over its budget ({outcome.over_budget})" if outcome.over_budget else ""
            lines.append(
                f"{outcome.trajectory}: found tests that the reference solution fails{over}, expected it to pass"
            )
    if lines:
        raise config_error(sorted(lines))
