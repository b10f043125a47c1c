"""Prompts that are lists of chat messages: what they must look like."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tailrace.contracts import expected_one_of
from tailrace.trajstore.errors import PromptFileError

ROLES = ("system", "developer", "user", "assistant", "tool")
_ASKS = ("user", "tool")
_SAYS = ("user",)  # a tool may return nothing, and a system prompt may be empty
_TEXTS = ("text", "input_text", "output_text")

Messages = list[dict[str, Any]]


def check_messages(found: list[Any]) -> Messages:
    """Messages, each with a role and text, of which the model answers the last. Keys without a value are left out.

    A content in parts is the text of its parts, a line each. One in whose place a tool call stands is empty. A call's arguments
    that are JSON as text, as OpenAI's interface has them, are what they say.

    Raises:
        PromptFileError: they are something else. The message names the first one that is wrong, from 1.
    """
    if not found:
        raise PromptFileError("found no messages, expected at least one")
    messages = [_message(f"message {number}", message) for number, message in enumerate(found, start=1)]
    last = messages[-1]["role"]
    if last not in _ASKS:
        raise PromptFileError(
            f"message {len(messages)}: found the last one from {last!r}, expected one from {' or '.join(_ASKS)} that the "
            "model answers"
        )
    return messages


def _message(where: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise PromptFileError(f"{where}: found {type(found).__name__}, expected an object with 'role' and 'content'")
    message = {str(key): value for key, value in found.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str):
        raise PromptFileError(f"{where}: found no role, {expected_one_of('', ROLES)}")
    if role not in ROLES:
        raise PromptFileError(f"{where}: found the role {role!r}, {expected_one_of(role, ROLES)}")
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
            raise PromptFileError(
                f"{where}: found {type(calls).__name__} as its 'tool_calls', expected a list of objects"
            )
        message["tool_calls"] = [_call(call) for call in calls]
        message.setdefault("content", "")
    message["content"] = _content(where, message.get("content"))
    if role in _SAYS and not message["content"].strip():
        raise PromptFileError(f"{where}: found an empty content, expected text")
    return message


def _content(where: str, content: Any) -> str:
    if isinstance(content, str):
        return content
    if content is None:
        raise PromptFileError(f"{where}: found no content, expected text")
    if not isinstance(content, list):
        raise PromptFileError(
            f"{where}: found {type(content).__name__} as its content, expected text or a list of parts"
        )
    return "\n".join(_part(f"{where}, part {number}", part) for number, part in enumerate(content, start=1))


def _part(where: str, part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise PromptFileError(
            f"{where}: found {type(part).__name__}, expected text or an object with 'type' and 'text'"
        )
    kind, text = part.get("type", "text"), part.get("text")
    if kind not in _TEXTS:
        raise PromptFileError(f"{where}: found the type {kind!r}, expected 'text': nothing else is trained on")
    if not isinstance(text, str):
        raise PromptFileError(f"{where}: found {type(text).__name__} as its 'text', expected text")
    return text


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call whose arguments are an object, as chat templates expect it."""
    found = {str(key): value for key, value in call.items() if value is not None}
    if isinstance(found.get("function"), Mapping):
        found["function"] = _call(found["function"])
    arguments = found.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            said = json.loads(arguments)
            found["arguments"] = said if isinstance(said, dict) else arguments
    return found
