"""Prompts as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrace.contracts import extra
from tailrace.rollout.errors import RequestError

Prompt = str | Sequence[int]


class PromptReader:
    """Encodes prompts and checks that they fit.

    Args:
        model: Hugging Face model directory; text needs its ``tokenizer.json``.
        context: most tokens of a prompt and its response.
        vocabulary: tokens that the model knows; None: not checked. An engine that is given another one may die of it.
    """

    def __init__(self, model: Path, context: int, vocabulary: int | None = None) -> None:
        self._path, self._context = model / "tokenizer.json", context
        self._known = range(vocabulary or 0)  # empty: any
        self._tokenizer: Any = None

    def encode(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        """The token ids of each prompt. Text is encoded as it stands, without a chat template or special tokens.

        Raises:
            RequestError: one is empty, fills the context, has a token that the model does not know, or is text and the model
                has no tokenizer.
        """
        encoded = []
        for index, prompt in enumerate(prompts):
            tokens = self._encode(index, prompt) if isinstance(prompt, str) else tuple(prompt)
            if not tokens:
                raise RequestError(f"prompt {index} is empty, expected at least one token")
            if len(tokens) >= self._context:
                raise RequestError(
                    f"prompt {index} has {len(tokens)} tokens, expected fewer than the context of {self._context}"
                )
            unknown = [token for token in (min(tokens), max(tokens)) if token not in self._known]
            if self._known and unknown:
                raise RequestError(f"prompt {index} has the token {unknown[0]}, expected 0 to {self._known[-1]}")
            encoded.append(tokens)
        return encoded

    def text(self, prompts: Sequence[Prompt]) -> list[str]:
        """The text of each prompt, which a ranker reads.

        Raises:
            RequestError: one is given as ids, and the model has no tokenizer.
        """
        return [
            prompt if isinstance(prompt, str) else self._load(index).decode(list(prompt), skip_special_tokens=False)
            for index, prompt in enumerate(prompts)
        ]

    def _encode(self, index: int, prompt: str) -> tuple[int, ...]:
        return tuple(self._load(index).encode(prompt, add_special_tokens=False).ids)

    def _load(self, index: int) -> Any:
        if self._tokenizer is None:
            if not self._path.is_file():
                raise RequestError(f"prompt {index}: found no {self._path}, expected token ids without a tokenizer")
            with extra("tailrace-rollout", "transformers"):
                from tokenizers import Tokenizer
            self._tokenizer = Tokenizer.from_file(str(self._path))
        return self._tokenizer
