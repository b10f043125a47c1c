"""A model's chat template: conversations as token ids, and what the model said as a message.

    messages ──template──► text ──tokenizer──► the prompt of a first request
    messages, a mark in place of the model's last words ──► text behind the mark ──► what the next prompt has beyond them

Nothing that the model read or said is tokenized a second time. The second way renders the whole conversation, since a
template may look at all of it, and keeps what stands behind the model's last words: what ends its turn, the messages that
follow, and what begins the next turn.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tailrace.contracts import extra
from tailrace.environment.worker import encodable

Message = Mapping[str, Any]

_MARK = "tailrace-turn"  # stands in no template
_TOOL_CALL = "<tool_call>"
_TOOL_CALL_END = "</tool_call>"


class TemplateError(ValueError):
    """The template has no words for a conversation; the message says why in one line."""


class ChatTemplate:
    """Renders conversations for one model.

    Args:
        model: a Hugging Face directory with the model's ``tokenizer.json`` and its chat template.
        template: a Jinja template in place of the model's own; empty: the model's.

    Raises:
        ValueError: there is no such directory, no template, or it is none.
        MissingExtraError: the extra ``harness`` is not installed.
    """

    def __init__(self, model: str, template: str = "") -> None:
        with extra("tailrace-environment", "harness"):
            import jinja2
            import jinja2.ext
            from jinja2.sandbox import ImmutableSandboxedEnvironment
            from tokenizers import Tokenizer

        folder = Path(model)
        if not (folder / "tokenizer.json").is_file():
            raise ValueError(f"found tokenizer = {model!r}, expected the model's directory with tokenizer.json")
        path = folder / "tokenizer_config.json"
        settings = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._errors: tuple[type[Exception], ...] = (
            *(jinja2.TemplateError, TypeError, ValueError, KeyError),
            RecursionError,  # of arguments that are as nested as they may be
        )
        text = template or _own_template(folder, settings)
        if not text:
            raise ValueError(
                f"found no chat template in {model}, expected one there or as the option 'template', such as "
                "'{% for m in messages %}{{ m.content }}{% endfor %}'"
            )
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _as_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        try:
            self._template = environment.from_string(_GENERATION.sub("", text))
        except jinja2.TemplateError as error:
            raise ValueError(f"found a chat template that is none: {error}") from error
        self._special = {name: _content(settings[name]) for name in _SPECIAL if settings.get(name)}
        self._ends = self._turn_ends(folder)
        self.takes_tools = "tools" in text
        """Whether the template has words for tools."""
        self.reads_tool_calls = _TOOL_CALL in text
        """Whether its model writes a tool call as JSON in ``<tool_call>`` tags."""

    def prompt(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
        """The token ids of a conversation, up to where the model's turn begins.

        Raises:
            TemplateError: the template has no words for it.
        """
        return self._encode(self._render(messages, tools))

    def beyond(
        self, messages: Sequence[Message], place: int, said: Sequence[int], tools: Sequence[Any] = ()
    ) -> list[int]:
        """What the prompt of a conversation has behind a turn of the model.

        Args:
            messages: the whole conversation.
            place: which of the messages is that turn.
            said: the token ids of the turn, with the one that ended it, if any.
            tools: as in `prompt`.

        Raises:
            TemplateError: the template has no words for it, or does not show the turn.
        """
        mark, later = _MARK, json.dumps(messages[place + 1 :])
        while mark in later:  # which may be anything, also what a tool found in this file
            mark += "-"
        marked = [*messages[:place], {"role": "assistant", "content": mark}, *messages[place + 1 :]]
        whole = self._render(marked, tools)
        _, turn, rest = whole.rpartition(mark)
        if not turn:
            raise TemplateError(
                "the chat template does not show the model's turn behind which the conversation goes on"
            )
        after, ended = self._encode(rest), said[-1] if said and said[-1] in self._ends else None
        return after[1:] if after and after[0] == ended else after

    def text(self, said: Sequence[int]) -> str:
        """What a turn says, without the token that ended it."""
        own = said[:-1] if said and said[-1] in self._ends else said
        text: str = self._tokenizer.decode(list(own), skip_special_tokens=False)
        return text

    def message(self, said: Sequence[int], stops: Sequence[str], tools: bool, turn: int) -> dict[str, Any]:
        """A turn as a message of the assistant.

        Args:
            said: its token ids.
            stops: texts at the first of which the message is cut; the tokens stay as they are.
            tools: whether tool calls are read.
            turn: its number, for the ids of tool calls: they are the same whenever the same turns are played again.
        """
        text = self.text(said)
        cut = min((place for stop in stops if (place := text.find(stop)) >= 0), default=len(text))
        text = text[:cut]
        calls = _tool_calls(text, turn) if tools and self.reads_tool_calls else []
        if not calls:
            return {"role": "assistant", "content": text}
        return {"role": "assistant", "content": text[: text.index(_TOOL_CALL)].strip() or None, "tool_calls": calls}

    def _turn_ends(self, folder: Path) -> set[int]:
        """Tokens that end the model's turn: those at which generation stops, and what the template writes behind a turn."""
        path = folder / "generation_config.json"
        stops = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
        ends: set[Any] = {self._tokenizer.token_to_id(self._special.get("eos_token", ""))}
        ends.update(stops if isinstance(stops, list) else [stops])
        with contextlib.suppress(TemplateError):  # it may want other messages than these
            whole = self._render([{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}], ())
            _, turn, rest = whole.rpartition(_MARK)
            added = self._tokenizer.get_added_tokens_decoder()
            first = self._encode(rest)[:1] if turn else []
            ends.update(token for token in first if token in added and added[token].special)
        return ends - {None}

    def _render(self, messages: Sequence[Message], tools: Sequence[Any]) -> str:
        given = {
            "messages": [_for_template(each) for each in messages],
            "tools": list(tools) or None,
            "documents": None,
        }
        try:
            text: str = self._template.render(**self._special, **given, add_generation_prompt=True)
        except self._errors as error:  # a template may refuse anything
            raise TemplateError(
                f"the model's chat template refuses these messages: {' '.join(str(error).split())}"
            ) from error
        return text

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(encodable(text), add_special_tokens=False).ids)


@lru_cache(maxsize=4)
def chat_template(model: str, template: str) -> ChatTemplate:
    """The `ChatTemplate` of a model, read once in a process."""
    return ChatTemplate(model, template)


_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
_GENERATION = re.compile(r"{%-?\s*(?:end)?generation\s*-?%}")  # transformers' marks for masks, which render nothing


def _own_template(folder: Path, settings: Mapping[str, Any]) -> str:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = settings.get("chat_template") or ""
    if isinstance(found, list):  # several by name
        named = {each["name"]: each["template"] for each in found}
        found = named.get("default", "")
    return str(found)


def _content(token: Any) -> str:
    return str(token["content"] if isinstance(token, Mapping) else token)


def _for_template(message: Message) -> dict[str, Any]:
    """A message as templates expect it: the arguments of tool calls are objects."""
    found = {key: value for key, value in message.items() if value is not None or key == "content"}
    if found.get("content") is None:
        found["content"] = ""
    if "tool_calls" in found:
        found["tool_calls"] = [_with_object(call) for call in found["tool_calls"]]
    return found


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call["function"])
    try:
        arguments = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError, RecursionError):
        return {**call, "function": function}
    return {**call, "function": {**function, "arguments": arguments}}


def _within_tool_calls(text: str) -> Iterator[str]:
    """What stands between the marks of tool calls, in one pass: an expression would take minutes for a long run of spaces."""
    end = 0
    while (begin := text.find(_TOOL_CALL, end)) >= 0 and (end := text.find(_TOOL_CALL_END, begin)) >= 0:
        yield text[begin + len(_TOOL_CALL) : end].strip()


def _tool_calls(text: str, turn: int) -> list[dict[str, Any]]:
    """The tool calls of a turn; none if one of them is none, which the harness then reads as text."""
    calls = []
    for place, found in enumerate(_within_tool_calls(text)):
        try:
            call = json.loads(found)
            name, arguments = call["name"], call.get("arguments", {})
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return []
        if not isinstance(name, str):
            return []
        said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        calls.append({"id": f"call_{turn}_{place}", "type": "function", "function": {"name": name, "arguments": said}})
    return calls


def _as_json(value: Any, ensure_ascii: bool = False, **form: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **form)  # not jinja's own, which escapes for HTML


def _refuse(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now(tz=datetime.UTC).astimezone().strftime(form)
