"""Checks a run's prompts before it starts: each row of its files, and the verifier, which is tried on the first of them."""

from __future__ import annotations

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
        ConfigError: rows are wrong, or the verifier cannot judge the first one. The message has a line for each.
    """
    if config.task.name is not None or config.task.train is None:
        return None
    gathered = Gathered()
    found = read_files(config, config.model.path)
    gathered.add(*found.faults)
    if found.first is not None and _known(config, found.first):
        with gathered.check():
            _try_verifier(config, found.first)
    gathered.done()
    return found


def _known(config: RunConfig, prompt: Prompt) -> bool:
    """Whether a prompt's verifier exists; otherwise another check reports it."""
    known = plugins.names("tailrace.verifier")
    if prompt.verifier is not None:
        return prompt.verifier in known
    return is_reference(config.task.verifier) or config.task.verifier in known


def _try_verifier(config: RunConfig, prompt: Prompt) -> None:
    """Verify one row's reference answer by its verifier, in a separate process."""
    name = prompt.verifier or config.task.verifier
    item = ScoreItem("", f"<answer>{prompt.answer}</answer>", prompt.answer, name, item_metadata(prompt))
    own = {name: name} if is_reference(name) else {}
    with Scorer(own, timeout_s=config.deadlines.verify_s) as scorer:
        (outcome,) = scorer.score([item])
    if isinstance(outcome, ScoringFailure):
        raise ConfigError(f"key 'task.verifier': tried on the first row of {config.task.train}: {outcome.reason}")
