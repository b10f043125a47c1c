"""``tailrace init``: a project that runs, to begin one's own with."""

from __future__ import annotations

import shlex
from importlib.resources import files
from pathlib import Path

from tailrace.cli.errors import CommandError
from tailrace.cli.outputs import write_file

FILES = ("tailrace.toml", "train.jsonl", "held_out.jsonl", "verify.py", "test_verify.py")


def init(directory: Path) -> None:
    """Write the project and say what to do with it.

    Raises:
        CommandError: a file of the project is there already. Nothing is overwritten.
        OSError: the directory cannot be written.
    """
    there = [name for name in FILES if (directory / name).exists()]
    if there:
        raise CommandError(f"{directory}: found {', '.join(there)} there, expected a directory without them")
    directory.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        kept = f"{name}.txt" if name.endswith(".py") else name  # here they are no code
        write_file(directory / name, files("tailrace.cli").joinpath("project", kept).read_text(encoding="utf-8"))
    typed = shlex.quote(str(directory / "tailrace.toml"))
    print(f"{directory}: wrote {', '.join(FILES)}")
    print(f"check it:  tailrace run {typed} --dry-run")
    print(f"train:     tailrace run {typed}")
