"""Which tokens end a response: the model's, or those of the configuration; and what else looks like an end and is none.

generation_config.json ──► config.json ──► eos_token_id ──► stop tokens ◄── rollout.stop_tokens, in their place
                    tokenizer's eos_token, the chat template's end of a turn ──► told where they are not among them
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from tailrace.contracts import expected_one_of, extra
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.prompts.chat import end_of_turn
from tailrace.rollout.model_files import end_tokens, special_token, tokenizer_settings

_SHOWN = 8
_KEY = "key 'rollout.stop_tokens'"


def stop_tokens(config: RunConfig, model: Path) -> tuple[int, ...]:
    """The tokens that end a response of a model.

    Raises:
        ConfigError: the model names none, nor does the configuration, or it names one that the model has not.
    """
    given = config.rollout.stop_tokens
    if given is None:
        found = end_tokens(str(model))
        if not all(type(token) is int for token in found):
            raise ConfigError(f"{model}: found eos_token_id = {list(found)!r:.60}, expected token ids")
        if not found:
            raise ConfigError(
                f"{model}: found no eos_token_id in its configuration, expected one, or {_KEY}: responses could not end"
            )
        return found
    tokenizer = _tokenizer(model)
    return tuple(dict.fromkeys(_number(tokenizer, token) for token in given))


def end_markers(config: RunConfig, model: Path) -> tuple[int, ...]:
    """The tokens that are no part of what a response says: those that end it, and other ends that the model's files name.

    Raises:
        ConfigError: see `stop_tokens`.
    """
    named = [token for token in end_tokens(str(model)) if type(token) is int]
    return tuple(dict.fromkeys((*stop_tokens(config, model), *named, *end_of_turn(model))))


def stops_in_words(config: RunConfig, model: Path) -> list[str]:
    """A line for what ends responses, and one for each other end that the model's files name and that ends none.

    Raises:
        ConfigError: see `stop_tokens`.
    """
    stops, tokenizer = stop_tokens(config, model), _tokenizer(model)
    lines = [f"responses end at {', '.join(_named(tokenizer, token) for token in stops)}"]
    of_text = tokenizer.token_to_id(special_token(tokenizer_settings(str(model)), "eos_token"))
    turn = end_of_turn(model)
    for source, token in (
        ("the tokenizer's end token", of_text),
        ("the chat template's end of a turn", (*turn, None)[0]),
    ):
        if token is not None and token not in stops:
            proposed = ", ".join(str(each) for each in (*stops, token))
            lines.append(
                f"{source}, {_named(tokenizer, token)}, does not end a response; rollout.stop_tokens = [{proposed}] would"
            )
    return lines


def _tokenizer(model: Path) -> Any:
    with extra("tailrace-trainer", "torch"):
        from tokenizers import Tokenizer
    try:
        return Tokenizer.from_file(str(model / "tokenizer.json"))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"key 'model.path': {model / 'tokenizer.json'} is no tokenizer: {error}") from error


def _number(tokenizer: Any, token: int | str) -> int:
    if isinstance(token, str):
        number: int | None = tokenizer.token_to_id(token)
        if number is None:
            added = [each.content for each in tokenizer.get_added_tokens_decoder().values()]
            near = get_close_matches(token, added, n=1) or added[:_SHOWN]  # models have hundreds of them
            raise ConfigError(
                f"{_KEY}: found {token!r}, which is no token of the model, {expected_one_of(token, near)}"
            )
        return number
    size = tokenizer.get_vocab_size()
    if not 0 <= token < size:
        raise ConfigError(f"{_KEY}: found {token}, expected 0 to {size - 1}")
    return token


def _named(tokenizer: Any, token: int) -> str:
    return f"{tokenizer.id_to_token(token)!s} ({token})"
