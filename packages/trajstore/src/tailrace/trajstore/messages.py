"""Prompts that are lists of chat messages: what they must look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.contracts import expected_one_of
from tailrace.trajstore.errors import PromptFileError

ROLES = ("system", "developer", "user", "assistant", "tool")
_ASKS = ("user", "tool")

Messages = list[dict[str, Any]]


def check_messages(found: list[Any]) -> Messages:
    """Messages, each with a role and text, of which the model answers the last. Keys without a value are left out.

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
    content = message.get("content")
    if content is None:
        raise PromptFileError(f"{where}: found no content, expected text")
    if not isinstance(content, str):
        raise PromptFileError(f"{where}: found {type(content).__name__} as its content, expected text")
    if not content.strip():
        raise PromptFileError(f"{where}: found an empty content, expected text")
    return message
