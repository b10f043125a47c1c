"""Checks prompt files before a run starts: each row's form, length in tokens and verifier, and overlap of the files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tailrace.contracts import plugins
from tailrace.pipeline.config.gathered import Gathered
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.prompts import item_metadata
from tailrace.reward import ScoreItem, Scorer, ScoringFailure
from tailrace.reward.verifiers import is_reference
from tailrace.trajstore import Prompt, check_prompts

_SHOWN = 5  # faults of one file that are listed one by one


def check_data(config: RunConfig) -> None:
    """Check every row of a configuration's prompt files, if it has some.

    Raises:
        ConfigError: rows are wrong. The message has a line for each, for at most five rows of a file, and the number of others.
    """
    if config.task.name is not None or config.task.train is None:
        return
    gathered = Gathered()
    known = set(plugins.names("tailrace.verifier"))
    most = _most_prompt_tokens(config)
    tokenizer = _tokenizer(config)

    first: dict[str, Prompt] = {}

    @cache
    def verifier_missing(name: str | None) -> str | None:
        if name is None or name in known:
            return None
        return f"found the verifier {name!r}, expected one of {', '.join(sorted(known))}"

    def inspect(prompt: Prompt) -> str | None:
        first.setdefault("prompt", prompt)
        if not prompt.prompt.strip():
            return "found an empty prompt, expected text"
        if tokenizer is not None and most is not None:
            tokens = len(tokenizer.encode(prompt.prompt, add_special_tokens=False).ids)
            if tokens > most:
                return (
                    f"found a prompt of {tokens:,} tokens, expected at most {most:,}: the context less rollout.max_tokens "
                    f"= {config.rollout.max_tokens:,}"
                )
        return verifier_missing(prompt.verifier)

    places: list[dict[str, str]] = []
    for path in filter(None, (config.task.train, config.task.held_out)):
        with gathered.check():
            faults, found = check_prompts(path, inspect=inspect)
            places.append(found)
            gathered.add(*map(str, faults[:_SHOWN]))
            if len(faults) > _SHOWN:
                gathered.add(f"{path}: {len(faults) - _SHOWN:,} more rows are wrong")
    if len(places) == 2:
        both = [place for prompt, place in places[1].items() if prompt in places[0]]
        if both:
            gathered.add(_overlap(both, config.task.train))
    named = first["prompt"].verifier if first else None
    if first and (
        named in known if named is not None else is_reference(config.task.verifier) or config.task.verifier in known
    ):
        with gathered.check():
            _try_verifier(config, first["prompt"])
    gathered.done()


def _overlap(both: Sequence[str], train: Path) -> str:
    more = f", and so do {len(both) - 1:,} more" if len(both) > 1 else ""
    return f"{both[0]}: this held-out prompt is in {train} too{more}; expected prompts not trained on"


def _tokenizer(config: RunConfig) -> Any:
    """The model's tokenizer; None if it is missing, which another check reports."""
    path = None if config.model.path is None else config.model.path / "tokenizer.json"
    if path is None or not path.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"key 'model.path': {path} is no tokenizer: {error}") from error


def _most_prompt_tokens(config: RunConfig) -> int | None:
    """Most tokens of a prompt such that a response of full length fits after it; None if unknown."""
    most = config.rollout.options.get("max_model_len")
    if most is None and config.model.path is not None:
        try:
            most = json.loads((config.model.path / "config.json").read_text())["max_position_embeddings"]
        except (OSError, ValueError, KeyError, TypeError):
            return None  # the check of the model's files reports it
    return most - config.rollout.max_tokens if isinstance(most, int) else None


def _try_verifier(config: RunConfig, prompt: Prompt) -> None:
    """Verify one row's reference answer by its verifier, in a separate process."""
    name = prompt.verifier or config.task.verifier
    item = ScoreItem("", f"<answer>{prompt.answer}</answer>", prompt.answer, name, item_metadata(prompt))
    own = {name: name} if is_reference(name) else {}
    with Scorer(own, timeout_s=config.deadlines.verify_s) as scorer:
        (outcome,) = scorer.score([item])
    if isinstance(outcome, ScoringFailure):
        raise ConfigError(f"key 'task.verifier': tried on the first row of {config.task.train}: {outcome.reason}")
