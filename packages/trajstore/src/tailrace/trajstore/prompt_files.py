"""Rows of prompt files: JSON Lines and CSV, Parquet with the extra ``parquet``, and datasets with the extra ``datasets``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tailrace.trajstore.csv_rows import read_csv
from tailrace.trajstore.dataset_rows import DATASET, read_dataset
from tailrace.trajstore.errors import ParquetSupportError, PromptFileError

_JSONL, _CSV, _PARQUET = (".jsonl", ".ndjson"), (".csv",), (".parquet",)

# The place of a row, for messages, and the row.
Located = tuple[str, dict[str, Any]]


def read_rows(source: Path | str, faults: list[PromptFileError] | None = None) -> Iterator[Located]:
    """Every row of a file with its place, such as ``"train.jsonl, line 3"``.

    Args:
        source: the file, or ``hf:NAME:SPLIT``, see `dataset_rows`.
        faults: rows that are malformed are noted here and passed over; without it the first one is raised.

    Raises:
        PromptFileError: the file is missing, empty, malformed or of an unknown kind.
        ParquetSupportError, DatasetsSupportError: the extra is not installed.
    """
    empty = True
    for located in _located(source, faults):
        empty = False
        yield located
    if empty and not faults:
        raise PromptFileError(f"{source}: found no rows, expected at least one prompt")


def _located(source: Path | str, faults: list[PromptFileError] | None) -> Iterator[Located]:
    if str(source).startswith(DATASET):
        return read_dataset(str(source))
    path = Path(source)
    suffix = path.suffix.lower()
    known = _JSONL + _CSV + _PARQUET
    if suffix not in known:
        raise PromptFileError(
            f"{path}: found the ending {suffix!r}, expected one of {', '.join(known)}, or a dataset as hf:NAME:SPLIT"
        )
    if not path.is_file():
        raise PromptFileError(f"{path}: found no such file, expected a file of prompts")
    if suffix in _PARQUET:
        return _read_parquet(path)
    return read_csv(path, faults) if suffix in _CSV else _read_jsonl(path, faults)


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
        row = json.loads(line.rstrip())  # an error at its end is not one of column 1 after it
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
            f"{path}: reading Parquet needs pyarrow; pip install 'tailrace-trajstore[parquet]', or convert the file to JSON "
            "Lines"
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
