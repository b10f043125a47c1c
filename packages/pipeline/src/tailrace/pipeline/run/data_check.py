"""Checks a run's prompts before it starts: each row of its files, and the verifier, which is tried on the first of them."""

from __future__ import annotations

from pathlib import Path

from tailrace.contracts import plugins
from tailrace.pipeline.config.gathered import Gathered
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.prompts import item_metadata
from tailrace.pipeline.run.prompt_reading import FoundPrompts, read_files
from tailrace.reward import ScoreItem, Scorer, ScoringFailure
from tailrace.reward.verifiers import is_reference
from tailrace.trajstore import Prompt


def check_data(config: RunConfig) -> FoundPrompts | None:
    """Check every row of a configuration's prompt files, if it has some. Returns what they hold.

    Raises:
        ConfigError: rows are wrong, the verifier cannot judge the first one, or programs are to be scored and no sandbox works
            here. The message has a line for each.
    """
    if config.task.name is not None:
        if get_task(config.task.name).verifier == "code":
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
    for name, source in config.task.training.items():
        first = found.first.get(name)
        verifier = None if first is None else first.verifier or config.task.verifier
        if first is not None and verifier is not None and _known(verifier):
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
