"""Turns chat messages into a prompt's text, with the chat template of the model's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

from tailrace.contracts import expected_one_of, extra
from tailrace.pipeline.errors import ConfigError
from tailrace.trajstore import Messages, PromptFileError

_TURN = "tailrace-turn"  # text that stands in no template


class Chat:
    """A model's chat template, which is loaded once a prompt needs it.

    Args:
        model: the directory of the model with its tokenizer; None if it does not exist yet.
        texts: whether prompts that are text are a user's message too; otherwise they are used as they stand.
        options: further variables of the template, such as ``enable_thinking``.
    """

    def __init__(self, model: Path | None, *, texts: bool, options: Mapping[str, Any] | None = None) -> None:
        self._model, self._texts = model, texts
        self._options = {"add_generation_prompt": True, **(options or {})}

    def renders(self, prompt: str | Messages) -> bool:
        """Whether the template makes a prompt's text; otherwise it is used as it stands."""
        return not isinstance(prompt, str) or (self._texts and bool(prompt.strip()))

    def text(self, prompt: str | Messages) -> str:
        """The text of a prompt; of messages, with what begins the model's answer.

        Raises:
            PromptFileError: the template refuses the messages.
            ConfigError: the model has no template.
        """
        if isinstance(prompt, str):
            if not self.renders(prompt):
                return prompt
            prompt = [{"role": "user", "content": prompt}]
        tokenizer = self._tokenizer
        from jinja2 import TemplateError

        refused: Exception | None = None
        for messages in (prompt, _with_text_arguments(prompt)):
            try:
                text: str = tokenizer.apply_chat_template(messages, tokenize=False, **self._options)
            except (TemplateError, TypeError, ValueError, KeyError) as error:  # a template may do anything
                refused = refused or error
            else:
                return text
        raise PromptFileError(f"the model's chat template refuses these messages: {refused}") from refused

    @cached_property
    def _tokenizer(self) -> Any:
        asks = "prompts are chat messages"
        if self._model is None:
            raise ConfigError(
                f"key 'model.path': found none, and {asks}: expected a model whose tokenizer has a chat template, which the "
                "small model's has not"
            )
        with extra("tailrace-rollout", "transformers"):
            import jinja2  # noqa: F401 - the template is written for it
            from transformers import AutoTokenizer
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(self._model), local_files_only=True, trust_remote_code=False)
        except Exception as error:  # the library raises errors of many kinds
            said = next(iter(str(error).splitlines()), "")
            raise ConfigError(
                f"key 'model.path': {self._model}: found no readable tokenizer ({type(error).__name__}: {said}), and {asks}"
            ) from error
        if not tokenizer.chat_template:
            raise ConfigError(
                f"key 'model.path': {self._model}: found no chat template, and {asks}: expected chat_template.jinja, or "
                "'chat_template' in tokenizer_config.json"
            )
        self._check_options(tokenizer)
        return tokenizer

    def _check_options(self, tokenizer: Any) -> None:
        """Refuse options that the template does not look at: they would change nothing."""
        from jinja2 import Environment, TemplateError, meta

        templates = tokenizer.chat_template
        texts = templates.values() if isinstance(templates, dict) else [templates]
        try:
            known = set().union(*(meta.find_undeclared_variables(Environment().parse(text)) for text in texts))  # noqa: S701
        except TemplateError:
            return  # with extensions of the library's own; what is wrong with it, the first prompt tells
        unknown = [name for name in self._options if name not in known and name != "add_generation_prompt"]
        if unknown:
            raise ConfigError(
                f"key 'task.chat_options': found {unknown[0]!r}, which the model's chat template does not use, "
                f"{expected_one_of(unknown[0], sorted(known - {'messages'}))}"
            )


def has_template(model: Path) -> bool:
    """Whether a model's directory has a chat template."""
    settings = model / "tokenizer_config.json"
    return (model / "chat_template.jinja").is_file() or (
        settings.is_file() and '"chat_template"' in settings.read_text()
    )


def end_of_turn(model: Path) -> tuple[int, ...]:
    """The special tokens with which a model's chat template ends the model's turn, whether or not generation stops at them.

    None where the model has no template, or where the template shows no such turn.
    """
    if not has_template(model):
        return ()
    with extra("tailrace-rollout", "transformers"):
        import jinja2
        from tokenizers import Tokenizer
        from transformers import AutoTokenizer

    talk = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _TURN}]
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(model), local_files_only=True, trust_remote_code=False)
        whole: str = tokenizer.apply_chat_template(talk, tokenize=False)
    except (jinja2.TemplateError, TypeError, ValueError, KeyError):  # a template may refuse anything
        return ()
    _, turn, rest = whole.rpartition(_TURN)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    special = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    ended = tokenizer.encode(rest, add_special_tokens=False).ids if turn else []
    return tuple(takewhile(special.__contains__, ended))


def _with_text_arguments(value: Any) -> Any:
    """Messages whose tool calls have their arguments as text, for templates that put them together with text."""
    if isinstance(value, list):
        return [_with_text_arguments(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: json.dumps(each) if key == "arguments" and isinstance(each, dict) else _with_text_arguments(each)
        for key, each in value.items()
    }
