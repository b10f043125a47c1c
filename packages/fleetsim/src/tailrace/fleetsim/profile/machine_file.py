"""Reads a machine's file, strictly, and writes it."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.profile.machine import FORMAT, MachineProfile
from tailrace.pipeline.config.loading import explain

SHIPPED = ("two-cores",)


def load_machine(name: str | Path) -> MachineProfile:
    """A machine that comes with the package, by name, or one from a file that ends in ``.toml``.

    Raises:
        ProfileError: the name or file does not exist, or the file is not a machine's profile.
    """
    if str(name) in SHIPPED:
        text, where = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml"
    else:
        if Path(name).suffix != ".toml":
            raise ProfileError(
                f"fleet.profile: found {str(name)!r}, expected {' or '.join(map(repr, SHIPPED))}, or a TOML file that "
                "`tailrace profile` wrote"
            )
        where = str(name)
        try:
            text = Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise ProfileError(f"found no readable profile {where} ({reason}); `tailrace profile` writes one") from None
    return parse_machine(text, where)


def parse_machine(text: str, where: str) -> MachineProfile:
    """The machine in a file's text.

    Raises:
        ProfileError: the text is not a machine's profile.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"{where}: found a file that is not TOML ({error}), expected a machine's profile") from None
    if content.get("format") != FORMAT:
        raise ProfileError(
            f"{where}: found format {content.get('format')!r}, expected {FORMAT}: measure the machine anew"
        )
    try:
        return MachineProfile.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(part) for part in first["loc"]]
        raise ProfileError(f"{where}: {explain(MachineProfile, path, first)}") from None


def machine_toml(machine: MachineProfile) -> str:
    """The machine as a file that `load_machine` reads."""
    lines: list[str] = []
    parts: list[str] = []
    for key, value in machine.model_dump(exclude_none=True).items():
        if isinstance(value, dict):
            parts += ["", f"[{key}]", *(f"{name} = {_toml(one)}" for name, one in value.items())]
        elif key == "measured":
            lines = [*(f"# {line}" for line in str(value).splitlines()), *lines, f"measured = {_toml(value)}"]
        else:
            lines.append(f"{key} = {_toml(value)}")
    return "\n".join([*lines, *parts]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], list | tuple) and len(value) > 8:
            return "[\n" + "".join(f"  {_toml(one)},\n" for one in value) + "]"
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, float):
        return _number(value)
    return str(value)


def _number(value: float) -> str:
    return f"{value:.6g}"  # whole numbers have no point, since a float may be read from an integer
