"""Builds a configuration from a target and options: app defaults, then the file or the quick start, then the options."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tailrace.contracts import PluginError, plugins
from tailrace.faulttol import FaulttolError, parse_fault
from tailrace.pipeline.config.app import App
from tailrace.pipeline.config.loading import kinds_of, parse_setting, read_toml, validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.facts import allocated
from tailrace.reward.judge.config import names_a_file
from tailrace.trajstore import DATASET

APPS = "tailrace.app"
QUICK_START = "quickstart"
Layer = tuple[str, Mapping[str, Any]]


def configuration(
    target: str,
    *,
    settings: Sequence[str] = (),
    seed: int | None = None,
    executor: str | None = None,
    ray_address: str | None = None,
    faults: Sequence[tuple[str, str]] = (),
    mtbf_s: float | None = None,
    fault_seed: int | None = None,
) -> RunConfig:
    """The configuration of a command line, with the trainer's devices where provisioning shares them out (`allocated`).

    Args:
        target: a TOML file, or an app's name for its quick start.
        settings: ``KEY=VALUE`` of each ``--set``.
        seed: the run's seed; None keeps the configuration's.
        executor: ``"ray"`` or ``"local"``; None keeps the configuration's.
        ray_address: address of a Ray cluster; None keeps the configuration's.
        faults: kind (kill, hang, stall or raise) and ``ROLE[:ID]@WHEN`` of each further fault.
        mtbf_s: mean seconds between faults at random; None keeps the configuration's.
        fault_seed: seed of what faults draw; None keeps the configuration's.

    Raises:
        ConfigError: a file is missing, or a value is wrong.
        PluginError: the app's plugin is broken.
    """
    layers = target_layers(target, joins_cluster=ray_address is not None)
    layers += [(f"--set {text}", rooted(parse_setting(text), None)) for text in settings]
    if seed is not None:
        layers.append((f"--seed {seed}", {"seed": seed}))
    if executor is not None:
        layers.append((f"--executor {executor}", {"executor": {"name": executor}}))
    if ray_address is not None:
        layers.append((f"--ray-address {ray_address}", {"executor": {"ray_address": ray_address}}))
    if faults:
        further = [written_fault(kind, text) for kind, text in faults]
        layers.append((f"--{faults[0][0]}", {"faults": [*_faults(layers), *further]}))
    if mtbf_s is not None:
        layers.append((f"--mtbf {mtbf_s:g}", {"mtbf_s": mtbf_s}))
    if fault_seed is not None:
        layers.append((f"--fault-seed {fault_seed}", {"fault_seed": fault_seed}))
    config = validate(layers)
    if config.app != layers[0][1]["app"]:
        raise ConfigError(f"--set app={config.app}: expected TARGET to name the app, as in: tailrace run {config.app}")
    return allocated(config)


def target_layers(target: str, *, joins_cluster: bool = False) -> list[Layer]:
    """What an app's name, or a file, lays over one another: (where it comes from, its content).

    Args:
        target: an app or a file.
        joins_cluster: whether the run joins a cluster, which has machines of its own in place of those of a quick start.

    Raises:
        ConfigError, PluginError: there is no such file or app.
    """
    path = Path(target)
    bare = path.suffix != ".toml"  # a file or folder with an app's name may exist here
    if bare and (target in plugins.names(APPS) or (not path.exists() and "/" not in target)):
        return _quick_start(_app(target), joins_cluster)
    return _file_layers(path, (), joins_cluster)


def _quick_start(app: App, joins_cluster: bool) -> list[Layer]:
    content = app.quickstart()
    if joins_cluster:
        content = content | {"executor": {**content.get("executor", {}), "machines": 1}}
    return [(f"app {app.name}", app.defaults()), (f"{app.name}'s quick start", content)]


def _file_layers(path: Path, above: tuple[Path, ...], joins_cluster: bool) -> list[Layer]:
    """The layers of a file after those of its base: the app's defaults, its quick start, or another file beside it."""
    content = rooted(read_toml(path), path.parent)
    name, base = content.get("app"), content.pop("base", None)
    if not isinstance(name, str):
        found = "no key 'app'" if name is None else f"app = {name!r}"
        raise ConfigError(f"{path}: found {found}, expected one of {', '.join(plugins.names(APPS))}")
    try:
        app = _app(name)
    except PluginError as error:
        raise ConfigError(f"{path}: key 'app': {error}") from error
    if base is None:
        return [(f"app {name}", app.defaults()), (str(path), content)]
    if base == QUICK_START:
        return [*_quick_start(app, joins_cluster), (str(path), content)]
    if not isinstance(base, str) or not base.endswith(".toml"):
        raise ConfigError(
            f"{path}: key 'base': found {base!r}, expected {QUICK_START!r} or a TOML file beside this one"
        )
    if path in above:
        raise ConfigError(f"{path}: key 'base': found a circle of files, expected one that ends")
    return [*_file_layers(path.parent / base, (*above, path), joins_cluster), (str(path), content)]


def _app(name: str) -> App:
    if not plugins.names(APPS):
        raise ConfigError(
            f"found no app installed, expected {name!r}: pip install 'tailrace-fleetsim[apps]' to simulate, or "
            "'tailrace' to run"
        )
    app = plugins.load(APPS, name)
    if not isinstance(app, App):
        raise ConfigError(f"the plugin {name!r} of {APPS} is a {type(app).__name__}, expected an App")
    return app


def _faults(layers: Sequence[Layer]) -> list[str]:
    """The scripted faults of the layers so far."""
    found: Any = next((content["faults"] for _, content in reversed(layers) if "faults" in content), [])
    return list(found) if isinstance(found, list | tuple) else [found]


def written_fault(kind: str, text: str) -> str:
    """A fault as a configuration has it, from an option such as ``--hang ROLE[:ID]@WHEN``.

    Raises:
        ConfigError: it is none.
    """
    whole = text if kind == "kill" else f"{kind}:{text}"
    try:
        parse_fault(whole)
    except FaulttolError as error:
        raise ConfigError(f"--{kind} {text}: {error}") from error
    return whole


# Makes paths in a configuration file, which are relative to the file or to a home (``~``), absolute.


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
_TEMPLATE = "reward.judge.template"  # a text, or a file with it
_TABLES_OR_NAMES = ("fleet.profile", "fleet.model", "fleet.trainer.device", "fleet.rollout.device")
"""Keys whose value is the name of a built-in, or the user's own TOML file."""


def rooted(content: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
    """The content of a file with absolute paths.

    Args:
        content: the file's content.
        directory: the file's directory; None: relative paths stay so, and only ``~`` is told.
    """
    found = dict(content)
    for key in (*_PATHS, *_TABLES_OR_NAMES, _VERIFIER, _ENVIRONMENT, _FOLDER, _TEMPLATE):
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
    elif key == _TEMPLATE:
        table[name] = _below(directory, value) if names_a_file(value) else value
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
