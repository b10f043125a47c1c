"""Prompts as tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from tailrace.contracts import extra
from tailrace.rollout.errors import RequestError
from tailrace.rollout.model_files import begin_tokens
from tailrace.rollout.resumption import unknown_token

_LOG = logging.getLogger(__name__)
_RANKERS = 4
"""Requests that are ranked at once."""
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
        self._vocabulary = vocabulary
        self._tokenizer: Any = None
        self._begin: tuple[int, ...] = ()  # before a text

    def encode(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        """The token ids of each prompt. Text is encoded as it stands, without a chat template, behind what the tokenizer puts
        before a text (`begin_tokens`), unless it begins with that itself.

        Raises:
            RequestError: one is empty, fills the context, has a token that the model does not know, or is text and the model
                has no tokenizer.
        """
        if isinstance(prompts, str):
            raise RequestError("found one text, expected a list of prompts")
        encoded = []
        for index, prompt in enumerate(prompts):
            if not isinstance(prompt, Iterable):
                raise RequestError(f"prompt {index}: found {type(prompt).__name__}, expected text or token ids")
            tokens = self._encode(index, prompt) if isinstance(prompt, str) else tuple(prompt)
            if not tokens:
                raise RequestError(f"prompt {index} is empty, expected at least one token")
            if len(tokens) >= self._context:
                raise RequestError(
                    f"prompt {index} has {len(tokens)} tokens, expected fewer than the context of {self._context}"
                )
            unknown = unknown_token(tokens, self._vocabulary)
            if unknown is not None:
                expected = "whole numbers" if self._vocabulary is None else f"0 to {self._vocabulary - 1}"
                raise RequestError(f"prompt {index} has the token {unknown[0]!r:.40}, expected {expected}")
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
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise RequestError(
                f"prompt {index} has half of a character at place {error.start} ({prompt[error.start]!a}), expected text"
            ) from error
        found = tuple(self._load(index).encode(prompt, add_special_tokens=False).ids)
        return found if not found or found[: len(self._begin)] == self._begin else self._begin + found

    def _load(self, index: int) -> Any:
        if self._tokenizer is None:
            if not self._path.is_file():
                raise RequestError(f"prompt {index}: found no {self._path}, expected token ids without a tokenizer")
            with extra("tailrace-rollout", "transformers"):
                from tokenizers import Tokenizer
            self._tokenizer = Tokenizer.from_file(str(self._path))
            self._begin = begin_tokens(str(self._path.parent), self._tokenizer)
        return self._tokenizer


# The order in which the prompts of a request start: longest first, if a ranker says which those are.


class Ranker(Protocol):
    """Says which prompts will have the longest responses (`tailrace.ranker.LengthRanker` is one)."""

    def rank(self, prompts: Sequence[str]) -> Sequence[int]:
        """Positions of the prompts, longest first."""
        ...


class Ranking:
    """Asks a ranker in time, and does without it where it fails.

    Args:
        ranker: None leaves the order as given.
        reader: turns token ids into the text that a ranker reads.
        timeout_s: how long a request waits for it.
    """

    def __init__(self, ranker: Ranker | None, reader: PromptReader, timeout_s: float) -> None:
        self._ranker, self._reader, self._timeout_s = ranker, reader, timeout_s
        # Its own: rankers that hang would keep the event loop's threads from updates.
        self._threads = ThreadPoolExecutor(_RANKERS, thread_name_prefix="ranker")
        self.unranked = 0  # prompts that started in the order given, since the ranker failed

    async def order(self, prompts: Sequence[Prompt]) -> Sequence[int]:
        """The order in which prompts start. A ranker that is late or wrong costs the order, not the request."""
        as_given = range(len(prompts))
        if self._ranker is None or len(prompts) < 2:
            return as_given
        try:
            texts = self._reader.text(prompts)
            ranking = asyncio.get_running_loop().run_in_executor(self._threads, self._ranker.rank, texts)
            order = await asyncio.wait_for(ranking, self._timeout_s)
            if _is_order(order, len(prompts)):
                return [int(position) for position in order]
            problem = "it does not rank each prompt once"
        except TimeoutError:
            problem = f"it gave no order within {self._timeout_s:g} s"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        self.unranked += len(prompts)
        _LOG.warning("%d prompts start in the order given, since the ranker failed: %s", len(prompts), problem)
        return as_given


def _is_order(positions: object, count: int) -> bool:
    """Whether these are all positions from 0 to `count`, once each."""
    try:
        return sorted(int(position) for position in positions) == list(range(count))  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return False
