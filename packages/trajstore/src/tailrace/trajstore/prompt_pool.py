"""The prompt pool (Laminar section 3.1): an endless, reproducible stream of prompts."""

from __future__ import annotations

import itertools
import json
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from numbers import Integral
from pathlib import Path
from typing import Any

from tailrace.contracts import expected_one_of
from tailrace.trajstore.errors import PromptFileError
from tailrace.trajstore.prompt_files import Located, read_rows

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


Render = Callable[[str | Messages], str]
"""Makes the text of a prompt."""

_EXACT = 2**53  # whole numbers below it are floats exactly
_KEPT_EPOCHS = 2  # a pipeline reads the current epoch and, around its end, the next


@dataclass(frozen=True, slots=True)
class Prompt:
    """One element of the stream.

    Args:
        index: place in the stream, from 0.
        row: number of its row in the files, from 0.
        epoch: number of passes over all rows before it.
        prompt: the question.
        answer: the reference answer.
        verifier: name of the row's verifier; None if the row names none.
        metadata: the other columns of the row.
    """

    index: int
    row: int
    epoch: int
    prompt: str
    answer: str
    verifier: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class PromptStream(ABC):
    """An endless stream of prompts, read by index. The same index always has the same prompt."""

    def __iter__(self) -> Iterator[Prompt]:
        """The endless stream from its beginning."""
        return (self[index] for index in itertools.count())

    def __getitem__(self, index: int) -> Prompt:
        """The prompt at a place in the stream.

        Raises:
            IndexError: the index is negative.
        """
        if index < 0:
            raise IndexError(f"found the prompt index {index}, expected at least 0")
        return self._at(index)

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows. The stream itself is endless."""

    @abstractmethod
    def _at(self, index: int) -> Prompt:
        """The prompt at a place that is not negative."""


def check_seed(seed: object) -> None:
    """Refuse a seed that is no whole number, which would shuffle, too, and not as the number does that it may look like.

    Raises:
        TypeError: it is none.
    """
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
        raise TypeError(f"shuffle_seed: found {seed!r:.80}, expected a whole number or None")


@dataclass(frozen=True, slots=True)
class _Row:
    prompt: str
    answer: str
    verifier: str | None
    metadata: Mapping[str, Any]


class PromptPool(PromptStream):
    """Prompts by index, over endless epochs. Each epoch has every row once.

    The prompt at an index depends only on the rows and the seed, so the stream continues unchanged after a crash.

    Args:
        rows: objects with at least a prompt and an answer.
        shuffle_seed: seed of the shuffles, one for each epoch; None keeps the order of the rows.
        prompt_column: name of the column with the question; of one within a column, with points: ``input.messages``.
        answer_column: the same of the answer: text, or a number or date, which is written out.
        verifier_column: name of the column with the verifier's name. A row may leave it out.

    Raises:
        PromptFileError: there are no rows, or a row lacks a column or has a value of the wrong type in it.
        TypeError: the seed is no whole number.
    """

    def __init__(
        self,
        rows: Iterable[Mapping[str, Any]],
        *,
        shuffle_seed: int | None = None,
        prompt_column: str = "prompt",
        answer_column: str = "answer",
        verifier_column: str = "verifier",
    ) -> None:
        located = ((f"row {number}", dict(row)) for number, row in enumerate(rows, start=1))
        self._fill(located, shuffle_seed, (prompt_column, answer_column, verifier_column))

    @classmethod
    def from_file(
        cls,
        path: Path | str | Sequence[Path | str],
        *,
        shuffle_seed: int | None = None,
        prompt_column: str = "prompt",
        answer_column: str = "answer",
        verifier_column: str = "verifier",
    ) -> PromptPool:
        """Prompts of a file (JSON, CSV, Parquet, Arrow) or dataset (``hf:NAME:SPLIT``), or of several in order.

        Blank lines are skipped.

        Raises:
            PromptFileError: a file is missing, empty or malformed, or a row is.
            ParquetSupportError, DatasetsSupportError: the extra is not installed.
            TypeError: the seed is no whole number.
        """
        paths = [path] if isinstance(path, Path | str) else list(path)
        pool = cls.__new__(cls)
        located = itertools.chain.from_iterable(read_rows(one) for one in paths)
        pool._fill(located, shuffle_seed, (prompt_column, answer_column, verifier_column))
        return pool

    def _fill(self, located: Iterable[Located], shuffle_seed: int | None, columns: tuple[str, str, str]) -> None:
        check_seed(shuffle_seed)
        self._rows = [_row(where, row, columns) for where, row in located]
        if not self._rows:
            raise PromptFileError("found no rows, expected at least one prompt")
        self._seed = shuffle_seed
        self._orders: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """Number of rows, which is the number of prompts in an epoch. The stream itself is endless."""
        return len(self._rows)

    def _at(self, index: int) -> Prompt:
        epoch, place = divmod(index, len(self._rows))
        number = place if self._seed is None else self._order(epoch)[place]
        row = self._rows[number]
        return Prompt(index, number, epoch, row.prompt, row.answer, row.verifier, row.metadata)

    def _order(self, epoch: int) -> list[int]:
        order = self._orders.get(epoch)
        if order is None:
            order = list(range(len(self._rows)))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            # Replace the dictionary, so that other threads read either the old or the new state.
            kept = list(self._orders.items())[1 - _KEPT_EPOCHS :]
            self._orders = dict([*kept, (epoch, order)])
        return order


def read_prompts(
    path: Path | str,
    *,
    prompt_column: str = "prompt",
    answer_column: str = "answer",
    verifier_column: str = "verifier",
    render: Render | None = None,
    faults: list[PromptFileError] | None = None,
) -> Iterator[tuple[str, Prompt]]:
    """Every prompt of a file once, in order, with its place, such as ``"train.jsonl, line 3"``.

    Args:
        path: the file, or ``hf:NAME:SPLIT`` for a dataset.
        prompt_column, answer_column, verifier_column: see `PromptPool`.
        render: makes the text of a prompt, which is text or a list of chat messages; it may raise PromptFileError, to which the
            place is added. None: prompts are text, and used as they stand.
        faults: rows that are wrong are noted here and passed over; without it the first one is raised.

    Raises:
        PromptFileError: the file is missing, empty or of an unknown kind, or a row is wrong.
        ParquetSupportError, DatasetsSupportError: the extra is not installed.
    """
    columns = (prompt_column, answer_column, verifier_column)
    for number, (where, found) in enumerate(read_rows(path, faults)):
        try:
            row = _row(where, found, columns, render)
        except PromptFileError as fault:
            if faults is None:
                raise
            faults.append(fault)
        else:
            yield where, Prompt(number, number, 0, row.prompt, row.answer, row.verifier, row.metadata)


def _row(where: str, row: dict[str, Any], columns: tuple[str, str, str], render: Render | None = None) -> _Row:
    prompt_column, answer_column, verifier_column = columns
    prompt = _text(where, prompt_column, _value(where, row, prompt_column), render)
    answer = _answer(where, answer_column, _value(where, row, answer_column))
    verifier = row.get(verifier_column)
    if verifier is not None and not isinstance(verifier, str):
        raise PromptFileError(
            f"{where}: found {type(verifier).__name__} in column {verifier_column!r}, expected a name"
        )
    return _Row(prompt, answer, verifier, {name: value for name, value in row.items() if name not in columns})


def _text(where: str, column: str, prompt: Any, render: Render | None) -> str:
    if not isinstance(prompt, str) and not (isinstance(prompt, list) and render is not None):
        expected = "text" if render is None else "text or a list of messages"
        raise PromptFileError(f"{where}: found {type(prompt).__name__} in column {column!r}, expected {expected}")
    if render is None:
        assert isinstance(prompt, str)
        return prompt
    try:
        return render(prompt if isinstance(prompt, str) else check_messages(prompt))
    except PromptFileError as error:
        raise PromptFileError(f"{where}: {error}") from error


def _answer(where: str, column: str, answer: Any) -> str:
    """An answer as text. Whole numbers have no point, since a column of whole numbers is one of floats where one is missing."""
    if isinstance(answer, str):
        return answer
    if isinstance(answer, date | time):
        return answer.isoformat()
    if isinstance(answer, bool) or not isinstance(answer, int | float | Decimal):
        raise PromptFileError(f"{where}: found {type(answer).__name__} in column {column!r}, expected text or a number")
    if not isinstance(answer, int) and not math.isfinite(answer):
        raise PromptFileError(f"{where}: found {answer} in column {column!r}, expected text or a finite number")
    if isinstance(answer, Decimal):
        return f"{answer:f}"
    whole = isinstance(answer, float) and abs(answer) < _EXACT and answer.is_integer()
    return str(int(answer) if whole else answer)


def _value(where: str, row: dict[str, Any], column: str) -> Any:
    """The value of a column, or of what lies in one: ``reward_model.ground_truth``, ``turns.0.value``."""
    if column in row:
        return row[column]
    first, *inner = column.split(".")
    if not inner or first not in row:
        raise PromptFileError(
            f"{where}: found the columns {', '.join(sorted(row)) or 'none'}, expected {column!r} among them"
        )
    value = row[first]
    for at, name in enumerate(inner, start=1):
        value = _parsed(value) if isinstance(value, str) else value
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list | tuple) and name.isdecimal() and len(name) < 20 and int(name) < len(value):
            value = value[int(name)]
        else:
            has = ", ".join(map(str, value)) or "none" if isinstance(value, Mapping) else type(value).__name__
            raise PromptFileError(
                f"{where}: found {has} in {'.'.join([first, *inner[: at - 1]])!r}, expected {name!r} in it"
            )
    return value


def _parsed(text: str) -> Any:
    """What a text says in JSON, as an object in a table whose columns have one type; the text itself if it says nothing."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
