"""How long a prompt may be such that a response of full length fits after it, and how one that is longer is cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.contracts import extra
from tailrace.environment import SessionError
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.observations import check_tokens
from tailrace.rollout.checkpoint import begin_tokens
from tailrace.trajstore import PromptFileError


@dataclass(frozen=True, slots=True)
class PromptRoom:
    """The room for a prompt in a model's context.

    Args:
        tokenizer: the model's tokenizer.
        most: most tokens of a prompt.
        max_tokens: most tokens of a response.
        begin: tokens that the tokenizer puts before a text that is no conversation.
    """

    tokenizer: Any
    most: int
    max_tokens: int
    begin: tuple[int, ...] = ()

    def tokens(self, text: str) -> tuple[int, ...]:
        """The tokens of a text itself."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def before(self, text: str) -> tuple[int, ...]:
        """Tokens that stand before a text that is no conversation: none where it has them itself."""
        return () if not self.begin or self.tokens(text)[: len(self.begin)] == self.begin else self.begin

    def text(self, tokens: Sequence[int]) -> str:
        """The text of tokens that the environment gave, to be looked at.

        Raises:
            PromptFileError: the tokenizer has not all of them.
        """
        try:
            check_tokens(tokens, self.tokenizer.get_vocab_size())
        except SessionError as error:
            raise PromptFileError(str(error)) from error
        text: str = self.tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def refusal(self, tokens: int) -> str:
        """What is wrong with a prompt of so many tokens."""
        return (
            f"found a prompt of {tokens:,} tokens, expected at most {self.most:,}: the context less rollout.max_tokens "
            f"= {self.max_tokens:,}"
        )

    def truncated(self, text: str, before: int = 0) -> str:
        """The longest end of a text that begins at a token's beginning and has, with `before` others, at most `most` tokens."""
        while True:
            offsets = self.tokenizer.encode(text, add_special_tokens=False).offsets
            over = len(offsets) + before - self.most
            if over <= 0:
                return text
            # What is left may be split into other tokens, even into more: so it is counted again. At least one character goes.
            text = text[max(offsets[over][0], 1) :]


def context_of(config: RunConfig, model: Path | None) -> PromptRoom | None:
    """The room for prompts; None if the model or its files are missing, which other checks report.

    Raises:
        ConfigError: the tokenizer is damaged, or a response leaves no room for a prompt.
    """
    path = None if model is None else model / "tokenizer.json"
    if model is None or path is None or not path.is_file():
        return None
    total = config.rollout.options.get("max_model_len")
    if total is None:
        try:
            total = json.loads((model / "config.json").read_text())["max_position_embeddings"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
    if not isinstance(total, int):
        return None
    max_tokens = config.rollout.max_tokens
    if max_tokens >= total:
        raise ConfigError(
            f"key 'rollout.max_tokens': found {max_tokens:,}, expected fewer than the {total:,} tokens of the context"
        )
    with extra("tailrace-trainer", "torch"):
        from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"key 'model.path': {path} is no tokenizer: {error}") from error
    return PromptRoom(tokenizer, total - max_tokens, max_tokens, begin_tokens(str(model), tokenizer))
