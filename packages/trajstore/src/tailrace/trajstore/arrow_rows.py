"""Rows of Parquet and Arrow files, with the extra ``parquet``. What a column cannot say in Python's values is text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tailrace.trajstore.errors import ParquetSupportError, PromptFileError


def read_parquet(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row of a Parquet file with its place.

    Raises:
        PromptFileError: the file is damaged.
        ParquetSupportError: the extra is not installed.
    """
    return _read(path, "a Parquet file", _parquet_batches)


def read_arrow(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row of an Arrow file with its place: a stream, as `datasets` writes, or a file that can be read at any place.

    Raises: as `read_parquet`.
    """
    return _read(path, "an Arrow file", _arrow_batches)


def rows_of(where: str, batch: Any) -> list[dict[str, Any]]:
    """The rows of a record batch or table.

    Raises:
        PromptFileError: a column cannot be read.
    """
    columns = {
        name: _values(f"{where}: column {name!r}", batch.column(at)) for at, name in enumerate(batch.column_names)
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _read(path: Path, kind: str, batches: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        from pyarrow import ArrowException
    except ImportError as error:
        raise ParquetSupportError(
            f"{path}: reading {kind} needs pyarrow; pip install 'tailrace-trajstore[parquet]', or convert it to JSON Lines"
        ) from error
    number = 0
    try:
        for batch in batches(path):
            for row in rows_of(str(path), batch):
                number += 1
                yield f"{path}, row {number}", row
    except (ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise PromptFileError(f"{path}: found no readable rows ({reason}), expected {kind}") from error


def _parquet_batches(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        yield from file.iter_batches()


def _arrow_batches(path: Path) -> Iterator[Any]:
    from pyarrow import ArrowInvalid, ipc, memory_map

    with ExitStack() as stack:
        file = stack.enter_context(memory_map(str(path)))
        try:
            reader = stack.enter_context(ipc.open_file(file))
        except ArrowInvalid:
            file.seek(0)
            yield from stack.enter_context(ipc.open_stream(file))
        else:
            yield from map(reader.get_batch, range(reader.num_record_batches))


def _values(where: str, column: Any) -> list[Any]:
    """A column as Python's values. Text that is not UTF-8 has U+FFFD in its place; what Python has no value for is text."""
    import pyarrow

    plain = pyarrow.types
    try:
        if plain.is_string(column.type) or plain.is_large_string(column.type):
            try:
                return list(column.to_pylist())
            except UnicodeDecodeError:
                raw = column.cast(pyarrow.large_binary()).to_pylist()
                return [None if value is None else value.decode(errors="replace") for value in raw]
        try:
            return list(column.to_pylist())
        except (pyarrow.ArrowException, ValueError, OverflowError, ImportError):  # a year beyond 9999, or nanoseconds
            return list(column.cast(pyarrow.string()).to_pylist())
    except (pyarrow.ArrowException, ValueError) as error:
        raise PromptFileError(f"{where}: found values that cannot be read ({str(error).splitlines()[0]})") from error
