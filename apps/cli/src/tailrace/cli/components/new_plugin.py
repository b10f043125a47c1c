"""``tailrace new-plugin``: a package with a policy that works, its tests and its registration, to begin one's own with."""

from __future__ import annotations

import keyword
import re
import shlex
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from tailrace.cli.errors import CommandError
from tailrace.cli.outputs import write_file
from tailrace.contracts import expected_one_of, plugins
from tailrace.controller.spec import AXES

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Axis:
    """What the package of an axis needs.

    Args:
        package: the distribution with the axis's contract suite.
        suite: the suite's module.
        option: an option of the policy that is refused below 0.
        value: another value of it than its default.
    """

    package: str
    suite: str
    option: str
    value: str


ABOUT = {
    "admission": Axis("tailrace-staleness", "tailrace.staleness.testing", "bound", "1"),
    "batching": Axis("tailrace-contracts", "tailrace.contracts.testing", "attempts", "3"),
    "routing": Axis("tailrace-repack", "tailrace.repack.testing", "fill", "0.5"),
    "sync": Axis("tailrace-repack", "tailrace.repack.testing", "behind", "3"),
    "relocation": Axis("tailrace-repack", "tailrace.repack.testing", "most", "8"),
    "training": Axis("tailrace-contracts", "tailrace.contracts.testing", "groups", "4"),
    "provisioning": Axis("tailrace-contracts", "tailrace.contracts.testing", "count", "3"),
    "recovery": Axis("tailrace-faulttol", "tailrace.faulttol.testing", "restarts", "5"),
}


def new_plugin(axis: str, name: str, directory: Path | None = None) -> None:
    """Write the package and say what to do with it.

    Args:
        axis: the axis of the policy.
        name: the name of the plugin and of its distribution.
        directory: the package's folder; one of the plugin's name if None.

    Raises:
        CommandError: the axis or the name cannot be, or there is something in the folder. Nothing is overwritten.
        OSError: the folder cannot be written.
    """
    if axis not in AXES:
        raise CommandError(f"found the axis {axis!r}, {expected_one_of(axis, AXES)}")
    module = _module(axis, name)
    root = directory if directory is not None else Path(name)
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise CommandError(f"{root}: found {'files' if root.is_dir() else 'a file'}, expected a new directory")
    contents = {
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "README.md.txt",
        f"src/{module}/__init__.py": f"{axis}.py.txt",
        f"src/{module}/py.typed": None,
        f"tests/test_{module}.py": "test.py.txt",
    }
    for path, template in contents.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        write_file(file, "" if template is None else _filled(template, axis, name, module))
    print(f"{root}: wrote {', '.join(contents)}")
    typed = shlex.quote(str(root))
    where = typed if root.is_absolute() else f"./{typed}"  # a bare name would be looked for in the package index
    print(f"install it:  uv pip install -e {where}    (or pip install, into the environment that has Tailrace)")
    print(f"test it:     pytest {typed}")
    print(f"fuzz it:     tailrace fuzz --with {name} --seeds 1000")
    print(f"use it:      tailrace run laminar --set pipeline.{axis}={name}")


def _module(axis: str, name: str) -> str:
    """The name of the Python package.

    Raises:
        CommandError: the name cannot be one of a distribution and of a package, or is taken.
    """
    if not NAME.fullmatch(name):
        raise CommandError(
            f"found the name {name!r}, expected small letters, digits and single hyphens, as in shortest-first"
        )
    module = name.replace("-", "_")
    if name in plugins.names(f"tailrace.{axis}"):
        raise CommandError(f"found a plugin {name!r} on axis {axis} already, expected a new name; see tailrace plugins")
    if keyword.iskeyword(module) or find_spec(module) is not None:
        what = "a word of Python" if keyword.iskeyword(module) else "a Python package that is installed here"
        raise CommandError(f"found the name {name!r}, which is {what}, expected another, such as my-{name}")
    return module


def _filled(template: str, axis: str, name: str, module: str) -> str:
    about = ABOUT[axis]
    replaced = {
        "THE_AXIS": axis,
        "THE_SUITE": about.suite,
        "THE_CHECK": f"check_{axis}_policy",
        "THE_PACKAGE": about.package,
        "THE_OPTION": about.option,
        "THE_VALUE": about.value,
        "my_policy": module,
        "my-policy": name,
        "MyPolicy": "".join(part.capitalize() for part in name.split("-")),
    }
    text = files("tailrace.cli").joinpath("plugin_project", template).read_text(encoding="utf-8")
    return re.sub("|".join(map(re.escape, replaced)), lambda found: replaced[found.group()], text)
