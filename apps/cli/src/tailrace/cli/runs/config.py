"""``tailrace config``: every key of a configuration, as a TOML file with comments on each key."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tailrace.contracts import shown
from tailrace.pipeline.config.described import DEFAULT, Key, described, schema
from tailrace.pipeline.config.loading import parse_setting
from tailrace.pipeline.config.target import target_layers

WIDTH = 80
_BARE = re.compile("[A-Za-z0-9_-]+")


def show_config(target: str, settings: Sequence[str], *, as_json: bool, as_schema: bool) -> None:
    """Print a configuration, or the schema of all configurations.

    Args:
        target: an app's name or a file.
        settings: ``key=value`` of each setting that overrides it.
        as_json: print a list of keys as JSON.
        as_schema: print the JSON schema instead.

    Raises:
        TailraceError: the configuration cannot be read.
    """
    if as_schema:
        print(json.dumps(schema(), indent=2))
        return
    keys = described([*target_layers(target), *((f"--set {text}", parse_setting(text)) for text in settings)])
    if as_json:
        print(json.dumps([asdict(key) for key in keys], indent=2))
    else:
        print("\n".join(as_toml(keys)))


def as_toml(keys: Sequence[Key]) -> Iterator[str]:
    """Lines of a valid TOML file with these keys. Keys without a value are comments."""
    for table, entries in _tables(keys).items():
        if table:
            yield f"\n[{table}]"
        for name, key in entries:
            yield from _explained(key)
            value = f"# {name} =" if key.value is None else f"{name} = {toml_value(key.value)}"
            yield value if key.source == DEFAULT else f"{value}  # {shown(key.source)}"


def _tables(keys: Sequence[Key]) -> dict[str, list[tuple[str, Key]]]:
    """Keys by table; a table's own keys come before its subtables."""
    parents = {key.name.rpartition(".")[0] for key in keys}
    found: dict[str, list[tuple[str, Key]]] = {"": []}
    for key in keys:
        if key.name in parents:  # a plugin with options
            found.setdefault(key.name, []).insert(0, ("name", key))
        else:
            table, _, name = key.name.rpartition(".")
            found.setdefault(table, []).append((name, key))
    tops = list(dict.fromkeys(table.partition(".")[0] for table in found))
    return {
        table: found[table] for table in sorted(found, key=lambda table: (tops.index(table.partition(".")[0]), table))
    }


def _explained(key: Key) -> list[str]:
    default = "" if key.default is None else f"; default {toml_value(key.default)}"
    text = f"{key.meaning.rstrip('.')}{'. ' if key.meaning else ''}[{key.kind}{default}]"
    return textwrap.wrap(text, WIDTH, initial_indent="# ", subsequent_indent="# ")


def toml_value(value: Any) -> str:
    """A value on one line of TOML. Its scalars are written as in JSON, but without surrogates."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(key)} = {toml_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(key: str) -> str:
    """A key of TOML, in quotes where it needs them."""
    return key if _BARE.fullmatch(key) else toml_value(key)
