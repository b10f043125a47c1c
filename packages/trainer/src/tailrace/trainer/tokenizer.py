"""Trains a tokenizer: byte-pair encoding that keeps digits, operators and tags whole, or whole words."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from tailrace.contracts import extra

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EOS = "<|endoftext|>"
PAD = "<|pad|>"
UNKNOWN = "<|unknown|>"
SPECIAL = (EOS, PAD, UNKNOWN)
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
OPERATORS = "+-*/=()"


def train_tokenizer(
    texts: Iterable[str],
    directory: str | Path,
    *,
    vocab_size: int = 149,
    tags: Sequence[str] = TAGS,
    split_digits: bool = True,
    operators: str = OPERATORS,
    attach_space: bool = False,
    words: bool = False,
) -> int:
    """Train a tokenizer and write ``tokenizer.json`` and ``tokenizer_config.json``, which ``AutoTokenizer`` loads.

    Encoding and decoding restores every text of digits, operators, tags and characters that occur in `texts`. Any other
    character becomes the unknown token. Needs no transformers.

    Args:
        texts: texts to learn from.
        directory: directory to create.
        vocab_size: most tokens, including special tokens and tags; fewer if `texts` do not yield as many.
        tags: tokens that are never split and remain when decoding skips special tokens.
        split_digits: whether each digit is its own token.
        operators: characters that are never merged with others.
        attach_space: whether a space before a digit or an operator may be part of its token. This makes texts such as
            ``7 + 5`` about half as long and the vocabulary larger.
        words: whether every word with the space before it is one token, including signed numbers. `split_digits`,
            `operators` and `attach_space` then do not apply, and only words of `texts` can be encoded.

    Returns:
        The number of tokens.
    """
    with extra("tailrace-trainer", "torch"):
        from tokenizers import AddedToken

    if words:
        tokenizer = _word_level(texts, vocab_size, tags)
    else:
        tokenizer = _byte_pairs(texts, vocab_size, tags, split_digits, operators, attach_space)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return _write(tokenizer, Path(directory))


def _word_level(texts: Iterable[str], vocab_size: int, tags: Sequence[str]) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[^\s<>]+|\s|[<>]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size - len(tags), special_tokens=[*SPECIAL], show_progress=False
    )
    tokenizer.train_from_iterator(_between(texts, tags), trainer)
    return tokenizer


def _between(texts: Iterable[str], tags: Sequence[str]) -> Iterator[str]:
    """The texts between tags. Tags are added whole, so learning their letters would waste vocabulary."""
    tag = re.compile("|".join(map(re.escape, tags)) or "(?!)")
    return (part for text in texts for part in tag.split(text))


def _byte_pairs(
    texts: Iterable[str], vocab_size: int, tags: Sequence[str], split_digits: bool, operators: str, attach_space: bool
) -> Tokenizer:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    space = " ?" if attach_space else ""
    pieces = [rf"{space}\d"] if split_digits else []
    if operators:
        pieces.append(rf"{space}[{re.escape(operators)}]")
    steps = [pre_tokenizers.Split(Regex("|".join(pieces)), "isolated")] if pieces else []
    tokenizer = Tokenizer(models.BPE(unk_token=UNKNOWN))
    # GPT-2's own split would separate a space from the next character, hence two steps.
    words = Regex(r" ?\p{L}+| ?\d+| ?[^\s\p{L}\d]+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *steps,
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - len(tags), special_tokens=[*SPECIAL], show_progress=False)
    whole = [*"".join(tags), *operators, *("0123456789" if split_digits else "")]
    tokenizer.train_from_iterator(chain(whole, _between(texts, tags)), trainer)
    return tokenizer


def _write(tokenizer: Tokenizer, root: Path) -> int:
    root.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(root / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000,
    }
    (root / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return int(tokenizer.get_vocab_size())
