"""Rows of prompt files: JSON and CSV, Parquet and Arrow with the extra ``parquet``, datasets with the extra ``datasets``.

What a column of Parquet or Arrow cannot say in Python's values is text.

A dataset is ``hf:NAME:SPLIT``, ``hf:NAME:CONFIGURATION:SPLIT`` or ``hf:FOLDER:SPLIT``, of the hub, its cache or a local folder
(beginning with ``/``, ``./``, ``../`` or ``~``). A split may be a part of one or a sum of several, as ``train[:100]``,
``train[:10%]+test``.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from tailrace.trajstore.errors import DatasetsSupportError, ParquetSupportError, PromptFileError


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


DATASET = "hf:"
"""The beginning of a prompt source that is a dataset, not a file."""
_SPLIT = r"[^:\[\]+()]+(?:\[[^\[\]]*\](?:\(\w+\))?)?"
_PARTS = re.compile(rf"hf:(?P<name>[^:\[\]]+)(:(?P<configuration>[^:\[\]]+))?:(?P<split>{_SPLIT}(\+{_SPLIT})*)")
_SPLITS = re.compile(_SPLIT)
_AT_ONCE = 1000
_FORMS = "hf:NAME:SPLIT, hf:NAME:CONFIGURATION:SPLIT or hf:FOLDER:SPLIT"


def read_dataset(source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every row of a dataset's split with its place, such as ``"hf:openai/gsm8k:main:train, row 3"``.

    A dataset of the hub that is not in the cache is downloaded, unless ``HF_HUB_OFFLINE`` is set.

    Raises:
        PromptFileError: the source has another form, or there is no such dataset, configuration or split.
        DatasetsSupportError: the extra is not installed.
    """
    parts = _PARTS.fullmatch(source)
    if parts is None:
        raise PromptFileError(f"{source}: found no name with a split, expected {_FORMS}")
    name, split = parts["name"], parts["split"]
    local = name.startswith(("/", "./", "../", "~"))
    if name.startswith("~"):
        with suppress(RuntimeError):  # no such user
            name = str(Path(name).expanduser())
    if local and not Path(name).is_dir():
        raise PromptFileError(f"{source}: found no folder {name!r}, expected one that holds a dataset")
    try:
        import datasets
    except ImportError as error:
        raise DatasetsSupportError(
            f"{source}: reading Hugging Face datasets needs their library; pip install 'tailrace-trajstore[datasets]'"
        ) from error
    try:
        with _quiet(datasets):
            if local and _is_saved(Path(name)):
                found = _saved(source, datasets.load_from_disk(name), split)
            else:
                found = datasets.load_dataset(name, parts["configuration"], split=split)
    except PromptFileError:
        raise
    except Exception as error:  # the library raises errors of many libraries
        said = next(iter(str(error).splitlines()), "")
        raise PromptFileError(f"{source}: found no readable dataset ({type(error).__name__}: {said})") from error
    number = 0
    # As Arrow has them: a column of pictures or sounds is not decoded, which would need the libraries that do.
    for table in found.with_format("arrow").iter(batch_size=_AT_ONCE):
        for row in rows_of(source, table):
            number += 1
            yield f"{source}, row {number}", row


def _is_saved(folder: Path) -> bool:
    """Whether `save_to_disk` wrote a folder."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _saved(source: str, found: Any, split: str) -> Any:
    from datasets import ReadInstruction, concatenate_datasets

    asked = [part.partition("[")[0] for part in _SPLITS.findall(split)]
    splits = found if isinstance(found, dict) else {str(found.split or asked[0]): found}
    if split == "all" and split not in splits:
        split, asked = "+".join(splits), list(splits)
    for name in asked:
        if name not in splits:
            raise PromptFileError(
                f"{source}: found the splits {', '.join(sorted(splits))}, expected {name!r} among them"
            )
    parts = ReadInstruction.from_spec(split).to_absolute({name: len(each) for name, each in splits.items()})
    chosen = [
        splits[part.splitname].select(range(part.from_ or 0, _end(part.to, splits[part.splitname]))) for part in parts
    ]
    return concatenate_datasets(chosen)


def _end(end: int | None, dataset: Any) -> int:
    return len(dataset) if end is None else min(end, len(dataset))


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Show no bars where nobody watches them."""
    if sys.stderr.isatty() or datasets.are_progress_bars_disabled():
        yield
        return
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.enable_progress_bars()


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
        source: the file, or ``hf:NAME:SPLIT``, see above.
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
