"""Prompts as token ids: with a byte-pair encoding trained on them, or with a model's own tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tailrace.ranker.errors import DamagedRankerError, RankerModelError

START = "<|start|>"
_MOST_CHARACTERS = 4_000_000  # of the texts that an encoding is trained on: seconds


class TextCodec:
    """Encodes prompts. Of a longer one the first and the last tokens are kept: what is asked stands at an end.

    Args:
        tokenizer: a tokenizer of the library tokenizers.
        most_tokens: of a prompt, at least 2.
    """

    def __init__(self, tokenizer: Any, most_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._most_tokens = most_tokens
        self._start = tokenizer.token_to_id(START)

    @classmethod
    def trained(cls, texts: Sequence[str], *, vocabulary: int, most_tokens: int) -> TextCodec:
        """A byte-level byte-pair encoding of these texts. Each digit is a token of its own, so that size can be read off."""
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=[START],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        budget, chosen = _MOST_CHARACTERS, []
        for text in texts:
            chosen.append(_clean(text)[:budget])
            budget -= len(chosen[-1])
            if budget <= 0:
                break
        tokenizer.train_from_iterator(chosen, trainer)
        return cls(tokenizer, most_tokens)

    @classmethod
    def of_model(cls, directory: Path, most_tokens: int) -> TextCodec:
        """The tokenizer of a model directory.

        Raises:
            RankerModelError: there is none.
        """
        file = directory / "tokenizer.json"
        if not file.is_file():
            raise RankerModelError(
                f"{directory}: found no tokenizer.json, expected a model directory with its tokenizer"
            )
        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise RankerModelError(f"{file}: found no tokenizer ({error}), expected that of a model") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer, most_tokens)

    @classmethod
    def restored(cls, content: bytes, most_tokens: int) -> TextCodec:
        """What `content` gave.

        Raises:
            DamagedRankerError: it is something else.
        """
        try:
            return cls(Tokenizer.from_str(content.decode()), most_tokens)
        except Exception as error:  # the library raises plain Exception
            raise DamagedRankerError(f"found a tokenizer that is none ({error}), expected what was saved") from error

    def content(self) -> bytes:
        """The tokenizer as JSON."""
        return str(self._tokenizer.to_str()).encode()

    @property
    def size(self) -> int:
        """Tokens of the vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Token ids of each prompt, at least one."""
        encoded = self._tokenizer.encode_batch([_clean(prompt) for prompt in prompts], add_special_tokens=False)
        return [self._whole(list(one.ids)) for one in encoded]

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, as it stands."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def digits(self) -> list[int]:
        """The tokens of the ten digits.

        Raises:
            RankerModelError: the vocabulary lacks one.
        """
        found = [self._tokenizer.token_to_id(str(digit)) for digit in range(10)]
        if None in found:
            raise RankerModelError(
                f"found no token for the digit {found.index(None)}, expected a vocabulary with all ten digits"
            )
        return found

    def _whole(self, ids: list[int]) -> list[int]:
        start = [] if self._start is None else [self._start]
        most = self._most_tokens - len(start)
        if len(ids) > most:
            ids = ids[: most // 2] + ids[-(most - most // 2) :]
        return start + ids or [0]


def _clean(text: str) -> str:
    """The text without half surrogates, which are no UTF-8."""
    return text.encode("utf-8", "replace").decode()
