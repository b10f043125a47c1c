"""The prompt pool (Laminar section 3.1): an endless, reproducible stream of prompts."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.trajstore.errors import PromptFileError
from tailrace.trajstore.prompt_files import Located, read_rows

_KEPT_EPOCHS = 2  # a pipeline looks at the epoch it is in and, around its end, at the next


@dataclass(frozen=True, slots=True)
class Prompt:
    """One element of the stream.

    Args:
        index: place in the stream, from 0. It is the index of the group that is generated from it.
        row: which row of the files it is, from 0.
        epoch: how often the stream had gone through all rows before it.
        prompt: the question.
        answer: what a verifier compares a response with.
        verifier: name of the verifier for this row, if the row has one.
        metadata: the other columns of the row.
    """

    index: int
    row: int
    epoch: int
    prompt: str
    answer: str
    verifier: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Row:
    prompt: str
    answer: str
    verifier: str | None
    metadata: Mapping[str, Any]


class PromptPool:
    """Prompts by index, over epochs without end. Each epoch has every row once.

    The element at an index depends on the rows and the seed alone, so after a crash the stream goes on where it was.

    Args:
        rows: objects with at least a prompt and an answer.
        shuffle_seed: reshuffles every epoch, reproducibly; None keeps the order of the rows.
        prompt_column: name of the column with the question.
        answer_column: name of the column with the answer: text, or a number, which is written out.
        verifier_column: name of the column with the verifier's name. A row may leave it out.

    Raises:
        PromptFileError: there are no rows, or a row lacks a column or has something else in it than text.
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
        """Prompts of a JSON Lines or Parquet file, or of several one behind the other. Blank lines are passed over.

        Raises:
            PromptFileError: one line that names file, line, what was found and what was expected.
            ParquetSupportError: the extra for Parquet is not installed.
        """
        paths = [path] if isinstance(path, Path | str) else list(path)
        pool = cls.__new__(cls)
        located = itertools.chain.from_iterable(read_rows(Path(one)) for one in paths)
        pool._fill(located, shuffle_seed, (prompt_column, answer_column, verifier_column))
        return pool

    def _fill(self, located: Iterable[Located], shuffle_seed: int | None, columns: tuple[str, str, str]) -> None:
        self._rows = [_row(where, row, columns) for where, row in located]
        if not self._rows:
            raise PromptFileError("found no rows, expected at least one prompt")
        self._seed = shuffle_seed
        self._orders: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """Rows, hence prompts in an epoch. The stream itself has no end."""
        return len(self._rows)

    def __iter__(self) -> Iterator[Prompt]:
        """The stream from its beginning, without end."""
        return (self[index] for index in itertools.count())

    def __getitem__(self, index: int) -> Prompt:
        """The prompt at a place in the stream.

        Raises:
            IndexError: the index is negative: an endless stream has no end to count from.
        """
        if index < 0:
            raise IndexError(f"found the prompt index {index}, expected at least 0")
        epoch, place = divmod(index, len(self._rows))
        number = place if self._seed is None else self._order(epoch)[place]
        row = self._rows[number]
        return Prompt(index, number, epoch, row.prompt, row.answer, row.verifier, row.metadata)

    def _order(self, epoch: int) -> list[int]:
        order = self._orders.get(epoch)
        if order is None:
            order = list(range(len(self._rows)))
            random.Random(f"{self._seed}/{epoch}").shuffle(order)
            # A new dictionary, so that threads that read the old one see either state whole.
            kept = list(self._orders.items())[1 - _KEPT_EPOCHS :]
            self._orders = dict([*kept, (epoch, order)])
        return order


def _row(where: str, row: dict[str, Any], columns: tuple[str, str, str]) -> _Row:
    prompt_column, answer_column, verifier_column = columns
    prompt = _value(where, row, prompt_column)
    if not isinstance(prompt, str):
        raise PromptFileError(f"{where}: found {type(prompt).__name__} in column {prompt_column!r}, expected text")
    answer = _value(where, row, answer_column)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise PromptFileError(
            f"{where}: found {type(answer).__name__} in column {answer_column!r}, expected text or a number"
        )
    verifier = row.get(verifier_column)
    if verifier is not None and not isinstance(verifier, str):
        raise PromptFileError(
            f"{where}: found {type(verifier).__name__} in column {verifier_column!r}, expected a name"
        )
    return _Row(prompt, str(answer), verifier, {name: value for name, value in row.items() if name not in columns})


def _value(where: str, row: dict[str, Any], column: str) -> Any:
    if column not in row:
        raise PromptFileError(
            f"{where}: found the columns {', '.join(sorted(row)) or 'none'}, expected {column!r} among them"
        )
    return row[column]
