"""Rows of prompt files: JSON Lines, or Parquet with the extra ``parquet``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace.trajstore.errors import ParquetSupportError, PromptFileError

_JSONL, _PARQUET = (".jsonl", ".ndjson"), (".parquet",)

# The place of a row, for messages, and the row.
Located = tuple[str, dict[str, Any]]


def read_rows(path: Path, faults: list[PromptFileError] | None = None) -> Iterator[Located]:
    """Every row of a file with its place, such as ``"train.jsonl, line 3"``.

    Args:
        faults: rows that are malformed are noted here and passed over; without it the first one is raised.

    Raises:
        PromptFileError: the file is missing, empty, malformed or of an unknown kind.
        ParquetSupportError: the extra for Parquet is not installed.
    """
    suffix = path.suffix.lower()
    if suffix not in _JSONL + _PARQUET:
        raise PromptFileError(f"{path}: found the ending {suffix!r}, expected one of {', '.join(_JSONL + _PARQUET)}")
    if not path.is_file():
        raise PromptFileError(f"{path}: found no such file, expected a file of prompts")
    empty = True
    for located in _read_jsonl(path, faults) if suffix in _JSONL else _read_parquet(path):
        empty = False
        yield located
    if empty and not faults:
        raise PromptFileError(f"{path}: found no rows, expected at least one prompt")


def _read_jsonl(path: Path, faults: list[PromptFileError] | None) -> Iterator[Located]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}, line {number}"
            try:
                yield where, _object(where, line)
            except PromptFileError as fault:
                if faults is None:
                    raise
                faults.append(fault)


def _object(where: str, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        raise PromptFileError(f"{where}: found bytes that are not UTF-8 text ({error.reason})") from error
    except json.JSONDecodeError as error:
        raise PromptFileError(
            f"{where}: found no JSON ({error.msg}, column {error.colno}), expected an object on each line"
        ) from error
    if not isinstance(row, dict):
        raise PromptFileError(f"{where}: found {type(row).__name__}, expected an object on each line")
    return row


def _read_parquet(path: Path) -> Iterator[Located]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise ParquetSupportError(
            f"{path}: reading Parquet needs pyarrow; install tailrace-trajstore[parquet], or convert the file to JSON Lines"
        ) from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path}, row {number}", row
    except (ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise PromptFileError(f"{path}: found no readable Parquet ({reason}), expected a Parquet file") from error
