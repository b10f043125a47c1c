"""Rows of CSV files, and of those with tabs: the first line names the columns."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

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
    reader = csv.reader(_lines(path, file), strict=True, delimiter=delimiter)
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


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise PromptFileError(
                f"{path}, line {number}: found bytes that are not UTF-8 text ({error.reason})"
            ) from error
