"""Checks a run's prompts before it starts: each row of its files, and the verifier, which is tried on the first of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tailrace.contracts import plugins
from tailrace.pipeline.config.gathered import Gathered
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError, config_error
from tailrace.pipeline.roles.prompts import item_metadata
from tailrace.pipeline.run.prompt_reading import FoundPrompts, read_files
from tailrace.pipeline.run.scoring import check_judge, check_sandbox, score_settings
from tailrace.reward import Kind, Outcome, RewardScheduler, ScoreItem, Scorer, ScoringFailure, kind_of
from tailrace.reward.tasks import get_task, task_names
from tailrace.reward.verifiers import is_reference
from tailrace.trajstore import Prompt


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
        first = found.first.get(name)
        verifier = None if first is None else first.verifier or config.task.verifier
        if first is not None and verifier is not None and _known(verifier) and kind_of(verifier) is Kind.MATH:
            with gathered.check():
                _try_verifier(config, verifier, source.path, first)
    gathered.done()
    return found


def _known(verifier: str) -> bool:
    """Whether a verifier exists; otherwise another check reports it."""
    return is_reference(verifier) or verifier in plugins.names("tailrace.verifier")


def _try_verifier(config: RunConfig, name: str, path: Path, prompt: Prompt) -> None:
    """Verify one row's reference answer by its verifier, in a separate process."""
    item = ScoreItem("", f"<answer>{prompt.answer}</answer>", prompt.answer, name, item_metadata(prompt))
    own = {name: name} if is_reference(name) else {}
    with Scorer(own, timeout_s=config.deadlines.verify_s) as scorer:
        (outcome,) = scorer.score([item])
    if isinstance(outcome, ScoringFailure):
        raise ConfigError(f"key 'task.verifier': tried on the first row of {path}: {outcome.reason}")


def _try_references(config: RunConfig, references: list[tuple[str, Prompt]]) -> None:
    """Run the first reference solutions: tests that they fail would give no response a reward."""
    items = [ScoreItem(where, prompt.answer, "", "code", item_metadata(prompt)) for where, prompt in references]

    async def outcomes() -> list[Outcome]:
        async with RewardScheduler(code=score_settings(config, ())["code"]) as scheduler:
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
