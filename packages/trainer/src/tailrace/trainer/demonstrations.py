"""Demonstrations as token ids: what a supervised step learns from, and what it only reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tailrace.trainer.errors import ModelError

Demonstration = tuple[str, str | Sequence[str]]
"""A prompt and its response: a text, or turns and what an environment answered, one after the other, beginning with a turn."""

TokenExample = tuple[Sequence[int], Sequence[int]] | tuple[Sequence[int], Sequence[int], Sequence[bool]]
"""Token ids of a prompt and its response; of the response's, whether each is learned, or else only read. Without: all are."""


def texts_of(demonstration: Demonstration) -> list[str]:
    """All texts of a demonstration, its prompt first."""
    prompt, response = demonstration
    return [prompt, response] if isinstance(response, str) else [prompt, *response]


def encode(directory: Path, examples: Sequence[Demonstration]) -> list[TokenExample]:
    """Token ids of each demonstration's prompt and response; each turn of the response ends with the end token.

    Turns and answers are tokenised one by one, as in a rollout, where an answer is appended to tokens that exist.

    Args:
        directory: of the tokenizer.
        examples: the demonstrations.

    Raises:
        ModelError: the tokenizer has no end token.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    settings = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    end = settings["eos_token"]
    eos = tokenizer.token_to_id(end if isinstance(end, str) else end["content"])
    if eos is None:
        raise ModelError(
            f"found no end token {end!r} in the vocabulary of {directory}, expected the tokenizer to have it"
        )
    texts = [texts_of(example) for example in examples]
    encoded = iter(tokenizer.encode_batch([text for each in texts for text in each], add_special_tokens=False))
    return [_joined([next(encoded).ids for _ in each], eos) for each in texts]


def _joined(parts: Sequence[Any], eos: int) -> TokenExample:
    prompt, *turns = parts
    response: list[int] = []
    learned: list[bool] = []
    for index, ids in enumerate(turns):
        is_turn = index % 2 == 0
        tokens = [*ids, eos] if is_turn else ids
        response += tokens
        learned += [is_turn] * len(tokens)
    return (prompt, response) if len(turns) == 1 else (prompt, response, learned)
