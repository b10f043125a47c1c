"""Rows of prompt files: JSON and CSV, Parquet and Arrow with the extra ``parquet``, datasets with the extra ``datasets``."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tailrace.trajstore.arrow_rows import read_arrow, read_parquet
from tailrace.trajstore.dataset_rows import DATASET, read_dataset
from tailrace.trajstore.errors import PromptFileError


def read_csv(
    path: Path, file: BinaryIO, faults: list[PromptFileError] | None, delimiter: str = ","
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row with its place, the line at which it ends. All values are text, however long.

    Args:
        path: for messages.
        file: its content.
        faults: rows with too few or too many values are noted here and passed over; without it the first one is raised.
        delimiter: what stands between values.

    Raises:
        PromptFileError: the file is not UTF-8 text, or no CSV, or a column has no name or that of another.
    """
    csv.field_size_limit(sys.maxsize)  # the process's own; its default of 128 KiB ends a long prompt's file
    reader = csv.reader(_text_lines(path, file), strict=True, delimiter=delimiter)
    try:
        columns = next(reader, None)
        if columns is None:
            return
        _check(path, columns)
        for values in reader:
            where = f"{path}, line {reader.line_num}"
            if not values:
                continue
            if len(values) == len(columns):
                yield where, dict(zip(columns, values, strict=True))
                continue
            fault = PromptFileError(
                f"{where}: found {len(values)} values, expected {len(columns)}: {', '.join(columns)}"
            )
            if faults is None:
                raise fault
            faults.append(fault)
    except csv.Error as error:
        raise PromptFileError(f"{path}, line {reader.line_num}: found no CSV ({error})") from error


def _check(path: Path, columns: list[str]) -> None:
    for number, name in enumerate(columns):
        if not name.strip():
            raise PromptFileError(f"{path}, line 1: found no name for column {number + 1}, expected one for each")
        if name in columns[:number]:
            raise PromptFileError(f"{path}, line 1: found the column {name!r} twice, expected each once")


def _text_lines(path: Path, file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise PromptFileError(
                f"{path}, line {number}: found bytes that are not UTF-8 text ({error.reason})"
            ) from error


_JSONL, _JSON, _CSV, _TSV = (".jsonl", ".ndjson"), (".json",), (".csv",), (".tsv",)
_TEXT = _JSONL + _JSON + _CSV + _TSV
_ARROW: dict[str, Callable[[Path], Iterator[Located]]] = {".parquet": read_parquet, ".arrow": read_arrow}
_OPEN: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)

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
    *_, inner, outer = ["", "", *(suffix.lower() for suffix in path.suffixes)]
    kind = inner if outer in _OPEN else outer
    if path.is_dir():
        raise PromptFileError(
            f"{path}: found a folder, expected a file, or {DATASET}{path}:SPLIT for the dataset in it"
        )
    if kind not in _TEXT and outer not in _ARROW:
        known = ", ".join((*_TEXT, *_ARROW))
        raise PromptFileError(
            f"{path}: found the ending {path.suffix!r}, expected one of {known}, text also with {', '.join(_OPEN)} behind it, "
            "or a dataset as hf:NAME:SPLIT"
        )
    if not path.is_file():
        raise PromptFileError(f"{path}: found no such file, expected a file of prompts")
    return _ARROW[outer](path) if outer in _ARROW else _read_text(path, kind, _OPEN.get(outer), faults)


def _read_text(
    path: Path, kind: str, unpack: Callable[[Path], Any] | None, faults: list[PromptFileError] | None
) -> Iterator[Located]:
    try:
        with path.open("rb") if unpack is None else unpack(path) as file:
            if kind in _JSONL:
                yield from _lines(path, file, faults)
            elif kind in _JSON:
                yield from _json(path, file, faults)
            else:
                yield from read_csv(path, file, faults, "\t" if kind in _TSV else ",")
    except _DAMAGED as error:
        raise PromptFileError(f"{path}: found no readable file ({str(error).splitlines()[0]})") from error


def _lines(path: Path, file: BinaryIO, faults: list[PromptFileError] | None) -> Iterator[Located]:
    for number, line in enumerate(file, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            yield where, _object(where, _parsed(where, line, "an object on each line"), "on each line")
        except PromptFileError as fault:
            if faults is None:
                raise
            faults.append(fault)


def _json(path: Path, file: BinaryIO, faults: list[PromptFileError] | None) -> Iterator[Located]:
    """Rows of a file that is one array, or JSON Lines by another name."""
    first = next((line for line in file if line.strip()), b"")
    file.seek(0)
    try:
        of_lines = isinstance(_parsed("", first, ""), dict)
    except PromptFileError:
        of_lines = False
    if of_lines:
        yield from _lines(path, file, faults)
        return
    found = _parsed(str(path), text, "an array of objects") if (text := file.read()).strip() else []
    if not isinstance(found, list):
        raise PromptFileError(f"{path}: found one {type(found).__name__}, expected an array of objects")
    for number, row in enumerate(found, start=1):
        where = f"{path}, row {number}"
        try:
            yield where, _object(where, row, "as each entry")
        except PromptFileError as fault:
            if faults is None:
                raise
            faults.append(fault)


def _parsed(where: str, text: bytes, expected: str) -> Any:
    try:
        found = json.loads(text.rstrip())  # an error at its end is not one of column 1 after it
    except UnicodeDecodeError as error:
        raise PromptFileError(f"{where}: found bytes that are not UTF-8 text ({error.reason})") from error
    except json.JSONDecodeError as error:
        at = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise PromptFileError(f"{where}: found no JSON ({error.msg}, {at}), expected {expected}") from error
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, or thousands of brackets
        raise PromptFileError(f"{where}: found JSON that cannot be read ({error})") from error
    return _whole_text(found) if b"\\ud" in text.lower() or b"\xed" in text else found


def _object(where: str, found: Any, each: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise PromptFileError(f"{where}: found {type(found).__name__}, expected an object {each}")
    return found


def _whole_text(value: Any) -> Any:
    """The same with U+FFFD for each half of a character, as of an emoji that was cut: nothing can encode it."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [_whole_text(each) for each in value]
    if isinstance(value, dict):
        return {_whole_text(key): _whole_text(each) for key, each in value.items()}
    return value
