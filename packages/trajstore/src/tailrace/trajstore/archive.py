"""Files of trajectories that were trained on: packed records, or JSON lines if the name ends with ``.jsonl``.

A file of packed records begins with ``TRLTRAJ1``. Each record is five unsigned little-endian numbers of four bytes, then four
parts: the sizes of the parts in bytes, and the CRC-32 of the parts one after the other.

    header            JSON: what a line has (`TrajectoryStore.export_jsonl`), but for values of tokens; and `spans`, for each
                      segment its version, number of tokens, and 0 if the model generated it, 1 if an environment answered it,
                      2 if such an answer begins a context
    prompt, tokens    token ids, 4 bytes each, unsigned, little-endian
    logprobs          of each token 4 bytes (single precision), or 8 if that would not be exact
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO

from tailrace.contracts import PackedTokens, SpanKind, extra
from tailrace.trajstore.errors import StoreFormatError
from tailrace.trajstore.token_bytes import unpack_logprobs, unpack_tokens

MAGIC = b"TRLTRAJ1"
_SIZES = struct.Struct("<5I")
CHECKED_BYTES = 1 << 28
"""Largest file of which `read_ends` compares every checksum."""


def is_lines(path: Path) -> bool:
    """Whether a file has JSON lines: by its name."""
    return path.suffix == ".jsonl"


def record(header: Mapping[str, Any], packed: PackedTokens) -> bytes:
    """A trajectory as a record."""
    parts = (json.dumps(header).encode(), packed.prompt or b"", packed.tokens, packed.logprobs)
    body = b"".join(parts)
    return _SIZES.pack(*map(len, parts), zlib.crc32(body)) + body


def read_trained(path: Path | str, *, tokens: bool = True, growing: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of a file of trajectories that were trained on, whichever it is; see `TrajectoryStore.export_jsonl`.

    Args:
        path: the file.
        tokens: whether prompt, tokens, versions, logprobs, observations and contexts are wanted; without them packed records
            are passed over, so that it is quick.
        growing: whether `TrajectoryStore.trim` may be appending to it, or have died there: a last row of which a part is
            missing is left out, and is no damage.

    Raises:
        StoreFormatError: it is damaged. The message names the place.
        OSError: it cannot be read.
    """
    path = Path(path)
    with path.open("rb") as file:
        if is_lines(path):
            for number, line in _lines(file, growing=growing):
                yield _of_line(path, number, line)
            return
        for number, place, sizes in _places(path, file, growing=growing):
            yield _of_record(path, number, file, place, sizes, tokens=tokens)


def read_ends(path: Path, count: int, *, growing: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The first and the last rows of a file, `count` of each at most.

    What lies between is not unpacked; of a file of up to `CHECKED_BYTES` all checksums are compared, which takes a second.

    Args:
        growing: see `read_trained`.

    Raises:
        StoreFormatError: the file is damaged.
    """
    with path.open("rb") as file:
        whole = path.stat().st_size <= CHECKED_BYTES
        lines = is_lines(path)
        rows = _lines(file, growing=growing) if lines else _places(path, file, checked=whole, growing=growing)
        first: list[Any] = list(islice(rows, count))
        last: deque[Any] = deque(first, maxlen=count)
        last.extend(rows)
        if lines:
            return [_of_line(path, *row) for row in first], [_of_line(path, *row) for row in last]

        def rows_of(places: Iterable[tuple[int, int, tuple[int, ...]]]) -> list[dict[str, Any]]:
            return [_of_record(path, number, file, place, sizes, tokens=True) for number, place, sizes in places]

        return rows_of(first), rows_of(last)


def find_trained(path: Path, trajectory: str, *, growing: bool = False) -> dict[str, Any] | None:
    """The row of one trajectory, with its tokens; None if it is not in the file. Others are passed over.

    Args:
        growing: see `read_trained`.

    Raises:
        StoreFormatError: the file is damaged before the trajectory's record.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if is_lines(path):
            rows = (_of_line(path, number, line) for number, line in _lines(file, growing=growing))
            return next((row for row in rows if row["trajectory"] == trajectory), None)
        for number, place, sizes in _places(path, file, growing=growing):
            if _of_record(path, number, file, place, sizes, tokens=False)["trajectory"] == trajectory:
                return _of_record(path, number, file, place, sizes, tokens=True)
    return None


def end_of_rows(path: Path) -> int:
    """Where the last row of a file ends of which all is there, in bytes.

    Raises:
        StoreFormatError: it is no file of trajectories that were trained on.
    """
    end = 0
    with path.open("rb") as file:
        if is_lines(path):
            for number, line in _lines(file, growing=True):
                if number == 1:
                    _of_line(path, number, line)
                end += len(line)
            return end
        for _, place, sizes in _places(path, file, growing=True):
            end = place + sum(sizes[:4])
    return end


def _lines(file: BinaryIO, *, growing: bool) -> Iterator[tuple[int, bytes]]:
    """Each line with its number. Of a file that grows, a last line that has no end yet is left out."""
    return ((number, line) for number, line in enumerate(file, 1) if line.endswith(b"\n") or not growing)


def _of_line(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
        return {**row, "trajectory": row["trajectory"], "consumed_version": row["consumed_version"]}
    except (ValueError, KeyError, TypeError) as error:
        raise StoreFormatError(f"{path}, line {number}: found no trained trajectory ({error!r})") from error


def _places(
    path: Path, file: BinaryIO, *, checked: bool = False, growing: bool = False
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Number of each record, position of its parts, and its five sizes. `checked` compares its checksum."""
    end = os.fstat(file.fileno()).st_size  # of the file that is read: another may take its name
    if (found := file.read(len(MAGIC))) != MAGIC:
        if growing and MAGIC.startswith(found):
            return
        raise StoreFormatError(f"{path}: found {found!r} at the beginning, expected {MAGIC!r}: trajectories trained on")
    number, place = 0, len(MAGIC)
    while place < end:
        number += 1
        file.seek(place)
        head = file.read(_SIZES.size)
        sizes = _SIZES.unpack(head) if len(head) == _SIZES.size else (end,) * 5
        place += _SIZES.size
        if place + sum(sizes[:4]) > end:
            if growing:
                return
            raise StoreFormatError(
                f"{path}, record {number}: found the end of the file at byte {end}, expected {place + sum(sizes[:4])} or more"
            )
        if checked:
            _check(path, number, file.read(sum(sizes[:4])), sizes)
        yield number, place, sizes
        place += sum(sizes[:4])


def _check(path: Path, number: int, body: bytes, sizes: tuple[int, ...]) -> None:
    if zlib.crc32(body) != sizes[4]:
        raise StoreFormatError(
            f"{path}, record {number}: found other bytes than were written, expected CRC {sizes[4]:#010x}"
        )


def _of_record(
    path: Path, number: int, file: BinaryIO, place: int, sizes: tuple[int, ...], *, tokens: bool
) -> dict[str, Any]:
    file.seek(place)
    body = file.read(sum(sizes[:4]) if tokens else sizes[0])
    if tokens:
        _check(path, number, body, sizes)
    try:
        row: dict[str, Any] = json.loads(body[: sizes[0]])
        spans, _ = row.pop("spans"), row["trajectory"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreFormatError(f"{path}, record {number}: found no trained trajectory ({error!r})") from error
    if sizes[1] % 4 or sizes[2] % 4 or sizes[3] not in (sizes[2], 2 * sizes[2]):
        raise StoreFormatError(
            f"{path}, record {number}: found {sizes[1]}, {sizes[2]} and {sizes[3]} bytes of prompt, tokens and logprobs, "
            "expected four for each token, and four or eight for its log-probability"
        )
    if not tokens:
        return row
    ends = [sum(sizes[:count]) for count in range(1, 5)]
    prompt, ids, values = (body[start:end] for start, end in pairwise(ends))
    if not _covers(spans, len(ids) // 4):
        raise StoreFormatError(f"{path}, record {number}: found other spans than of its {len(ids) // 4} tokens")
    return row | {
        "prompt": list(unpack_tokens(prompt)),
        "tokens": list(unpack_tokens(ids)),
        "versions": [version for version, count, _ in spans for _ in range(count)],
        "logprobs": list(unpack_logprobs(values, len(ids) // 4)),
        **answered(spans),
    }


def _covers(spans: Any, tokens: int) -> bool:
    """Whether spans have exactly so many tokens. A hostile file may claim any number, and each token makes an entry."""
    try:
        counts = [count for _, count, _ in spans]
        return all(type(count) is int and count >= 0 for count in counts) and sum(counts) == tokens
    except (TypeError, ValueError):
        return False


def answered(spans: Iterable[tuple[int, int, int]]) -> dict[str, Any]:
    """What a row says of what environments answered: `observations`, as pairs of positions, and those of them that are fresh.

    Args:
        spans: as in `Experience.spans`.
    """
    observations, contexts, start = [], [], 0
    for _, count, kind in spans:
        if kind:
            observations.append([start, start + count])
        if kind == SpanKind.FRESH:
            contexts.append(start)
        start += count
    return {"observations": observations, "contexts": contexts}


_GROUP_TOKENS = 4_000_000  # of a Parquet row group, about: its columns are in memory until it is written


def write_parquet(
    source: Path,
    target: Path,
    progress: Callable[[int], None] = lambda _: None,
    *,
    group_tokens: int = _GROUP_TOKENS,
    growing: bool = False,
) -> int:
    """Write a file of trajectories as Parquet, which appears complete or not at all.

    Columns: trajectory, group, finish, metadata (JSON) as strings; prompt, tokens (uint32), versions (int32), logprobs (double)
    as lists; observations as pairs of positions; contexts as positions; reward; generated, oldest_version, completed_version,
    consumed_version.

    Args:
        source: see `read_trained`.
        target: the file.
        progress: called after each row group with the rows that are written.
        group_tokens: about how many tokens a row group has.
        growing: see `read_trained`.

    Returns:
        Number of rows.

    Raises:
        MissingExtraError: pyarrow is not installed.
        StoreFormatError: the source is damaged.
        OSError: a file cannot be read or written.
    """
    with extra("tailrace-trajstore", "parquet"):
        import pyarrow
        from pyarrow import parquet

    pair = pyarrow.list_(pyarrow.uint32(), 2)
    schema = pyarrow.schema(
        {
            **dict.fromkeys(("trajectory", "group", "finish", "metadata"), pyarrow.string()),
            **dict.fromkeys(("prompt", "tokens"), pyarrow.list_(pyarrow.uint32())),
            "versions": pyarrow.list_(pyarrow.int32()),
            "logprobs": pyarrow.list_(pyarrow.float64()),
            "observations": pyarrow.list_(pair),
            "contexts": pyarrow.list_(pyarrow.uint32()),
            "reward": pyarrow.float64(),
            **dict.fromkeys(("generated", "oldest_version", "completed_version", "consumed_version"), pyarrow.int64()),
        }
    )
    unfinished = target.with_name(f"{target.name}.{os.getpid()}.unfinished")
    written = held = 0
    rows: list[dict[str, Any]] = []
    try:
        with parquet.ParquetWriter(unfinished, schema, compression="zstd") as writer:

            def put() -> None:
                writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                rows.clear()

            for row in read_trained(source, growing=growing):
                group = row.get("group")
                metadata = json.dumps(row.get("metadata"), sort_keys=True)
                rows.append({**row, "group": None if group is None else str(group), "metadata": metadata})
                held += len(row["tokens"])
                written += 1
                if held >= group_tokens:
                    put()
                    held = 0
                    progress(written)
            if rows:
                put()
                progress(written)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
    return written
