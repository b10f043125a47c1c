"""A ranker's directory.

ranker.json         what it is, and the SHA-256 of every file, of this one too; written last
examples.json       the recent examples, from which updates learn
predictor/          the files of its predictor: JSON and tensors

Nothing is pickled, so that reading a ranker runs nothing; all that can be wrong with a file is one typed error.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tailrace.ranker.errors import DamagedRankerError, ExampleError, RankerOptionError
from tailrace.ranker.example import Example
from tailrace.ranker.methods import GROUP, Method, load_method


def to_json(value: Any) -> bytes:
    """JSON of plain data, the same bytes for the same data."""
    return (json.dumps(value, sort_keys=True, allow_nan=False) + "\n").encode()


def file_of(files: Mapping[str, bytes], name: str) -> bytes:
    """One file's bytes.

    Raises:
        DamagedRankerError: it is missing.
    """
    if name not in files:
        raise DamagedRankerError(f"found no {name}, expected it beside {', '.join(sorted(files)) or 'others'}")
    return files[name]


def from_json(files: Mapping[str, bytes], name: str, *keys: str) -> dict[str, Any]:
    """A JSON object.

    Args:
        files: the files.
        name: which.
        keys: what it must have.

    Raises:
        DamagedRankerError: the file or a key is missing, or it is no JSON object.
    """
    try:
        value = json.loads(file_of(files, name))
    except (ValueError, RecursionError) as error:
        raise DamagedRankerError(f"{name}: found no JSON ({error}), expected an object") from error
    missing = [key for key in keys if not isinstance(value, dict) or key not in value]
    if missing or not isinstance(value, dict):
        raise DamagedRankerError(f"{name}: found no {', '.join(missing) or 'object'}, expected what was saved")
    return value


_NOTE, _EXAMPLES, _PREDICTOR = "ranker.json", "examples.json", "predictor"
_KINDS = {"method": str, "options": dict, "state": dict, "sha256": dict}
_FORMAT = 3  # since a saved ranker says which model its adapters are of
_ENDINGS = (".json", ".safetensors")


@dataclass(frozen=True, slots=True)
class SavedRanker:
    """All of a ranker, as data.

    Args:
        name: the method's.
        options: the method's fields.
        state: ``version``, ``seed``, ``budget_s``, ``policy``, ``init``, ``objective``, ``band`` and ``correction``.
        memory: recent examples.
        files: those of the predictor.
    """

    name: str
    options: Mapping[str, Any]
    state: Mapping[str, Any]
    memory: Sequence[Example]
    files: Mapping[str, bytes]

    def build_method(self) -> Method:
        """The method with its options.

        Raises:
            UnknownMethodError: it is not installed.
            DamagedRankerError: these are not its options.
        """
        try:
            return dataclasses.replace(load_method(self.name), **self.options)  # type: ignore[type-var]  # a dataclass
        except (TypeError, ValueError) as error:
            raise DamagedRankerError(f"found options that {self.name!r} does not take ({error})") from error


def registered_name(method: Method) -> str:
    """The name under which an entry point registers a method's class; empty if none does."""
    value = f"{type(method).__module__}:{type(method).__qualname__}"
    return next((point.name for point in entry_points(group=GROUP) if point.value == value), "")


def write_ranker(directory: Path, ranker: SavedRanker) -> None:
    """Write a ranker. A reader sees the old files, or a checksum that does not fit, until ``ranker.json`` is there.

    All is written before a file takes its name: what cannot be written, as where the disk is full, leaves the old ranker.

    Raises:
        OSError: it cannot be written.
        RankerOptionError: a predictor's file has a name that is not allowed.
    """
    files = {_EXAMPLES: to_json([dataclasses.asdict(example) for example in ranker.memory])}
    for name, content in ranker.files.items():
        if Path(name).name != name or not name.endswith(_ENDINGS):
            raise RankerOptionError(
                f"found the file {name!r} of {ranker.name!r}, expected a name ending {' or '.join(_ENDINGS)}"
            )
        files[f"{_PREDICTOR}/{name}"] = content
    note: dict[str, Any] = {
        "format": _FORMAT,
        "method": ranker.name,
        "options": dict(ranker.options),
        "state": dict(ranker.state),
        "sha256": {name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    }
    (directory / _PREDICTOR).mkdir(parents=True, exist_ok=True)
    files[_NOTE] = to_json({**note, "checksum": _checksum(note)})
    unfinished = {name: directory / f"{name}.{os.getpid()}.unfinished" for name in files}
    try:
        for name, content in files.items():
            unfinished[name].write_bytes(content)
    except BaseException:
        for path in unfinished.values():
            path.unlink(missing_ok=True)
        raise
    for name, path in unfinished.items():
        path.replace(directory / name)


def read_ranker(directory: Path) -> SavedRanker:
    """Read a ranker.

    Raises:
        DamagedRankerError: there is none, a file is missing, or its content is not what was written.
    """
    try:
        return _read(directory)
    except DamagedRankerError as error:
        raise DamagedRankerError(f"{directory}: {error}") from error


@dataclass(frozen=True, slots=True)
class SavedNote:
    """What a saved ranker is, without reading its weights.

    Args:
        method: its method's name.
        objective: what a language model learned; None for another method.
        updates: how many updates there were.
    """

    method: str
    objective: str | None
    updates: int


def read_note(directory: Path) -> SavedNote:
    """What the ranker in a directory is.

    Raises:
        DamagedRankerError: there is none, or its note is damaged.
    """
    try:
        note = _note(directory)
    except DamagedRankerError as error:
        raise DamagedRankerError(f"{directory}: {error}") from error
    return SavedNote(note["method"], note["state"].get("objective"), note["state"].get("version", 0))


def _note(directory: Path) -> dict[str, Any]:
    note = from_json(
        {_NOTE: _bytes(directory, _NOTE)}, _NOTE, "format", "method", "options", "state", "sha256", "checksum"
    )
    checksum = note.pop("checksum")
    if checksum != _checksum(note):
        raise DamagedRankerError(f"{_NOTE}: found another content than was written (its checksum differs)")
    if note["format"] != _FORMAT:
        raise DamagedRankerError(f"{_NOTE}: found format {note['format']!r}, expected {_FORMAT}")
    for key, kind in _KINDS.items():
        if not isinstance(note[key], kind):
            raise DamagedRankerError(f"{_NOTE}: found {note[key]!r} as {key}, expected what was saved")
    return note


def _read(directory: Path) -> SavedRanker:
    note = _note(directory)
    files: dict[str, bytes] = {}
    for name, digest in note["sha256"].items():
        files[name] = _bytes(directory, name)
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise DamagedRankerError(f"{name}: found another content than was written (its checksum differs)")
    rows = from_json({_EXAMPLES: b'{"rows": ' + files.pop(_EXAMPLES, b"null") + b"}"}, _EXAMPLES, "rows")["rows"]
    try:
        memory = [Example.from_json(row) for row in rows]
    except (ExampleError, TypeError) as error:
        raise DamagedRankerError(f"{_EXAMPLES}: {error}") from error
    content = {name.removeprefix(f"{_PREDICTOR}/"): data for name, data in files.items()}
    return SavedRanker(note["method"], note["options"], note["state"], memory, content)


def _bytes(directory: Path, name: str) -> bytes:
    try:
        return (directory / name).read_bytes()
    except OSError as error:
        raise DamagedRankerError(
            f"found no {name} ({error.strerror}), expected what LengthRanker.save wrote"
        ) from error


def _checksum(note: Mapping[str, Any]) -> str:
    return hashlib.sha256(to_json(note)).hexdigest()
