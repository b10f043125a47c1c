"""Makes paths in a configuration file, which are relative to the file or to a home (``~``), absolute."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tailrace.pipeline.config.loading import kinds_of
from tailrace.pipeline.config.models import RunConfig
from tailrace.trajstore import DATASET


def _paths_of(model: type[BaseModel], above: str = "") -> Iterator[str]:
    """The keys of a table, and of the tables in it, whose value is a path."""
    for name, field in model.model_fields.items():
        for kind in kinds_of(field.annotation):
            if Path in (kind, *typing.get_args(kind)):
                yield above + name
            elif isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _paths_of(kind, f"{above}{name}.")


_TRAIN = "task.train"
_PATHS = (*_paths_of(RunConfig), "fleet.workload.trace")  # a fleet's tables are not read here
_VERIFIER, _ENVIRONMENT = "task.verifier", "environment.name"  # a name, module:function or file.py:function
_FOLDER = "environment.options.folder"  # of an environment that starts something there
_TABLES_OR_NAMES = ("fleet.profile", "fleet.model", "fleet.trainer.device", "fleet.rollout.device")
"""Keys whose value is the name of a built-in, or the user's own TOML file."""


def rooted(content: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
    """The content of a file with absolute paths.

    Args:
        content: the file's content.
        directory: the file's directory; None: relative paths stay so, and only ``~`` is told.
    """
    found = dict(content)
    for key in (*_PATHS, *_TABLES_OR_NAMES, _VERIFIER, _ENVIRONMENT, _FOLDER):
        *tables, name = key.split(".")
        table: Any = found
        for part in tables:
            if not isinstance(table, dict) or not isinstance(table.get(part), Mapping):
                table = None
                break
            table[part] = dict(table[part])
            table = table[part]
        if isinstance(table, dict):
            _root(table, name, key, directory)
    task = found.get("task")
    if isinstance(task, dict) and isinstance(task.get("sources"), list):
        task["sources"] = [dict(one) if isinstance(one, Mapping) else one for one in task["sources"]]
        for source in task["sources"]:
            if isinstance(source, dict):
                _root(source, "path", _TRAIN, directory)
                _root(source, "verifier", _VERIFIER, directory)
    return found


def _root(table: dict[str, Any], name: str, key: str, directory: Path | None) -> None:
    """Make the value of a table absolute, as far as it is a path. `key` is the one that it is like."""
    value = table.get(name)
    if not isinstance(value, str):
        return
    if key in (_VERIFIER, _ENVIRONMENT):
        file, colon, function = value.rpartition(":")
        if file.endswith(".py"):
            table[name] = f"{_below(directory, file)}{colon}{function}"
    elif key in _PATHS or value.endswith(".toml") or (key == _FOLDER and value):
        table[name] = _absolute(value, directory)


def _absolute(value: str, directory: Path | None) -> str:
    """A path, or the folder of a dataset (``hf:./FOLDER:SPLIT``), below a directory. A dataset's name stays as it is."""
    scheme, value = (DATASET, value.removeprefix(DATASET)) if value.startswith(DATASET) else ("", value)
    if scheme and not value.startswith(("./", "../", "~")):
        return scheme + value
    return scheme + _below(directory, value)


def _below(directory: Path | None, path: str) -> str:
    if path.startswith("~"):
        with suppress(RuntimeError):  # no such user: a file whose name begins so
            path = str(Path(path).expanduser())
    return path if directory is None else str((directory / path).absolute())
