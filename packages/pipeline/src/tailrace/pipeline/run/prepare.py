"""Prepares what a run needs: prompts, held-out problems, a model, and the controls' demonstrations."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.options import read_options
from tailrace.pipeline.config.task import SourceConfig
from tailrace.pipeline.errors import FULL, ConfigError, Gathered, RunDirectoryError, RunWriteError, config_error
from tailrace.pipeline.roles.prompts import DecodingMode
from tailrace.pipeline.run.directory import RunDirectory, read_json, write_json
from tailrace.pipeline.run.environment_setup import has_own_rows, makes_prompts, no_tool_prefix
from tailrace.pipeline.run.prompts.environment_prompts import begin_rows
from tailrace.pipeline.run.prompts.reading import HELD_OUT, TRAIN, FoundPrompts, plain, prompts_file, read_files, sized
from tailrace.trainer.checkpoint_files import sync

SAMPLED, GREEDY, FORCED, FORCED_GREEDY = "sampled", "greedy", "forced", "forced-greedy"
NO_TOOL = "no-tool"

Progress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Files of a run.

    Args:
        verifier: the verifier of rows that name none.
        verifiers: all verifiers that rows use.
        forced_prefix: the beginning of a response in the worked style; empty if there is no such control.
        no_tool_prefix: the beginning of a response that asks no environment; empty if there is no such control.
        demonstrations: JSON file with the (prompt, response) pairs of the warm start; None without a warm start.
        counts: what became of the rows of the user's files, by file, as plain data; empty for a generated task.
        shares: share of each file of `train` in the prompts.
    """

    model: Path
    train: tuple[Path, ...]
    held_out: Path | None
    verifier: str
    forced_prefix: str
    demonstrations: Path | None
    warm_start_s: float = 0.0
    warm_start_cached: bool = False
    counts: dict[str, Any] = field(default_factory=dict)
    shares: tuple[float, ...] = (1.0,)
    verifiers: tuple[str, ...] = ()
    no_tool_prefix: str = ""

    def modes(self) -> dict[str, DecodingMode]:
        """The decoding modes of evaluations."""
        modes = {SAMPLED: DecodingMode(1.0), GREEDY: DecodingMode(0.0)}
        if self.forced_prefix:
            modes[FORCED] = DecodingMode(1.0, self.forced_prefix)
            modes[FORCED_GREEDY] = DecodingMode(0.0, self.forced_prefix)
        if self.no_tool_prefix:
            modes[NO_TOOL] = DecodingMode(1.0, self.no_tool_prefix, turns=False)
        return modes


def prepare(config: RunConfig, directory: RunDirectory, progress: Progress) -> Prepared:
    """Create the run's files or find those of an earlier call.

    Raises:
        ConfigError: a file, task or model that the configuration names does not exist, or rows of a file are wrong.
        RunWriteError: the disk is full.
    """
    note = directory.prepared
    if note.exists():
        return _of_earlier(directory, config)
    made = _generated if config.task.generated else _from_files
    try:
        prepared = made(config, directory, progress)
    except OSError as error:
        if error.filename is None and error.errno in FULL:
            raise RunWriteError(error.errno, error.strerror, str(directory.task)) from error
        raise
    for path in (*directory.task.rglob("*"), directory.task):  # a crash of the machine leaves all of them, or no note
        sync(path)
    write_json(note, {name: _noted(getattr(prepared, name), directory) for name in Prepared.__slots__}, sync=True)
    return prepared


def _noted(value: Any, directory: RunDirectory) -> Any:
    """A value as it is noted: paths in the run's directory from there, so that it may be moved."""
    if isinstance(value, tuple):
        return [_noted(each, directory) for each in value]
    if not isinstance(value, Path):
        return value
    root, path = directory.root.absolute(), value.absolute()
    return path.relative_to(root) if path.is_relative_to(root) else path


def _of_earlier(directory: RunDirectory, config: RunConfig) -> Prepared:
    """The files that an earlier driver of the run made."""
    note = directory.prepared
    found = read_json(note)
    try:
        paths = {key: directory.noted(found[key]) if found[key] else None for key in ("held_out", "demonstrations")}
        verifier = found["verifier"] if config.task.generated else config.task.verifier  # it may change
        return Prepared(
            **{
                **found,
                **paths,
                "model": directory.noted(found["model"]),
                "train": tuple(directory.noted(path) for path in found["train"]),
                "shares": tuple(found["shares"]),
                "verifier": verifier,
                "verifiers": tuple(dict.fromkeys((verifier, *found["verifiers"]))),
            }
        )
    except (KeyError, TypeError) as error:
        raise RunDirectoryError(
            f"{note}: found something else than this version writes ({error!r}); go on with the version that began the run"
        ) from error


def cache_directory() -> Path:
    """The directory for warm starts of several runs: ``$TAILRACE_CACHE``, else the user's cache directory."""
    own = os.environ.get("TAILRACE_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"


def _generated(config: RunConfig, directory: RunDirectory, progress: Progress) -> Prepared:
    from tailrace.reward.tasks import write_jsonl

    progress({"phase": "preparing the task"})
    tasks = {name: _task(key, name) for key, name in _named(config).items()}
    sizes, problems = config.task.parts(config.task.train_size), config.task.parts(config.task.held_out_size)
    train, held_out = [], prompts_file(directory.task, HELD_OUT)
    for name, task in tasks.items():
        train.append(prompts_file(directory.task, TRAIN if len(tasks) == 1 else f"{TRAIN}.{name}"))
        write_jsonl(train[-1], task.generate("train", sizes[name], config.seed))
    # one source after the other, as `EvaluationPlan.sources` says
    asked = [row for name, task in tasks.items() for row in task.generate("heldout", problems[name], config.seed)]
    write_jsonl(held_out, asked)
    verifiers = tuple(dict.fromkeys(task.verifier for task in tasks.values()))
    forced = next(iter(tasks.values())).forced_prefix if len(tasks) == 1 else ""  # each task has a style of its own
    files = Prepared(
        Path(), tuple(train), held_out, verifiers[0], forced, None, shares=config.task.shares, verifiers=verifiers,
        no_tool_prefix=no_tool_prefix(config),
    )  # fmt: skip
    if config.model.path is not None:
        files = dataclasses.replace(files, model=_existing_model(config.model.path))
    else:
        files = _warm_started(files, tasks, config, directory, progress)
    return _begun(files, config, directory, progress) if makes_prompts(config) else files


def _begun(files: Prepared, config: RunConfig, directory: RunDirectory, progress: Progress) -> Prepared:
    """The same with the prompts that the environment makes of a generated task's."""
    sources = tuple(SourceConfig(path=path, share=share) for path, share in zip(files.train, files.shares, strict=True))
    update: dict[str, Any] = {"name": None, "mix": {}, "sources": sources, "held_out": files.held_out}
    config = config.model_copy(update={"task": config.task.model_copy(update=update)})
    config, begun = begin_rows(config, directory, progress, files.model)
    _prompts(config, files.model, directory, progress, begun)
    train = tuple(prompts_file(directory.task, name) for name in config.task.training)
    return dataclasses.replace(files, train=train, held_out=prompts_file(directory.task, HELD_OUT))


def _named(config: RunConfig) -> dict[str, str]:
    """The generated tasks that are trained on, by the key that names each."""
    if config.task.name is not None:
        return {"task.name": config.task.name}
    return {f"task.mix.{name}": name for name in config.task.mix}


def _task(key: str, name: str) -> Any:
    from tailrace.reward.errors import UnknownTaskError
    from tailrace.reward.tasks import get_task

    try:
        return get_task(name)
    except UnknownTaskError as error:
        raise ConfigError(f"key {key!r}: {error}") from error


def _warm_started(
    files: Prepared, tasks: Mapping[str, Any], config: RunConfig, directory: RunDirectory, progress: Progress
) -> Prepared:
    """The same with a small model that learned from the tasks' demonstrations, of each as many as it has prompts."""
    from tailrace.trainer.small_model import SmallModel
    from tailrace.trainer.warmstart import DemonstrationStage, warm_start

    warm = config.warm_start
    counts = config.task.parts(warm.demonstrations) if len(tasks) > 1 else dict.fromkeys(tasks, warm.demonstrations)
    pairs = _demonstrations(tasks, counts, config.seed)
    stages = [DemonstrationStage(warm.steps, pairs)]
    if warm.flawless_steps:
        flawless = _demonstrations(tasks, counts, config.seed, misread=0.0)
        stages = [DemonstrationStage(warm.flawless_steps, flawless), *stages]
    demonstrations = directory.task / "demonstrations.json"
    demonstrations.write_text(json.dumps(pairs))
    small = config.model.small
    progress({"phase": "warm start", "detail": "starting its processes"})
    result = warm_start(
        directory.model,
        cache_directory() / "warmstart",
        demonstrations=stages,
        config=_warm_start(config),
        model=SmallModel(**small.model_dump()) if small is not None else SmallModel(),
        tokenizer=_tokenizer(config),
        progress=lambda row: progress({"phase": "warm start", **row}),
    )
    return dataclasses.replace(
        files,
        model=result.directory,
        demonstrations=demonstrations,
        warm_start_s=result.seconds,
        warm_start_cached=result.cached,
    )


def _demonstrations(
    tasks: Mapping[str, Any], counts: Mapping[str, int], seed: int, misread: float | None = None
) -> list[Any]:
    """Demonstrations of all tasks; without mistakes where `misread` is 0."""
    return [pair for name, task in tasks.items() for pair in task.warm_start(counts[name], seed + 1, misread)]


def check(config: RunConfig) -> None:
    """Check what is trained on, and the options of a warm start before it takes minutes.

    Raises:
        ConfigError: there is nothing to train on or more than one thing, a generated task is unknown, or an option is unknown
            or of the wrong type.
    """
    gathered = Gathered()
    for part in (_check_task, _task_names, _warm_start, _tokenizer):
        with gathered.check():
            part(config)
    gathered.done()


def _task_names(config: RunConfig) -> None:
    gathered, warm = Gathered(), config.warm_start.task
    for key, name in {**_named(config), **({} if warm is None else {"warm_start.task": warm})}.items():
        with gathered.check():
            _task(key, name)
    gathered.done()


def _warm_start(config: RunConfig) -> Any:
    from tailrace.trainer.warmstart import WarmStartConfig

    warm = config.warm_start
    if warm.flawless_steps >= warm.steps:
        raise ConfigError(
            f"keys 'warm_start.flawless_steps' and 'warm_start.steps': found {warm.flawless_steps} and {warm.steps}, expected "
            "fewer of the first"
        )
    own = {"steps": warm.steps, "batch": warm.batch, "lr": warm.lr, "processes": warm.processes, "seed": config.seed}
    return read_options(WarmStartConfig, {**own, **warm.options}, "key 'warm_start.options'")


def _tokenizer(config: RunConfig) -> Any:
    from tailrace.trainer.warmstart import TokenizerShape

    return read_options(TokenizerShape, config.model.tokenizer, "key 'model.tokenizer'")


def _check_task(config: RunConfig) -> None:
    task = config.task
    given = [key for key in ("name", "mix", "train", "sources") if getattr(task, key)]
    if len(given) != 1 and not has_own_rows(config):
        found = " and ".join(map(repr, given)) if given else "none of 'name', 'mix', 'train' and 'sources'"
        raise ConfigError(f"key 'task': found {found}, expected one: a generated task, a file of prompts, or several")
    if task.generated:
        _check_parts(config)
        return
    if config.model.path is None and config.warm_start.task is None:
        raise ConfigError(
            "key 'model.path': found none, expected a Hugging Face model directory to train on these prompts, or "
            "'warm_start.task' for a small model that learns from a generated task"
        )


def _check_parts(config: RunConfig) -> None:
    """Check that every task of a mix has prompts."""
    task = config.task
    for key, count in (("train_size", task.train_size), ("held_out_size", task.held_out_size)):
        none = [name for name, part in task.parts(count).items() if not part]
        if none:
            raise ConfigError(
                f"key 'task.{key}': found {count:,}, of which none would be of {none[0]!r} by its share, expected more"
            )


def _from_files(config: RunConfig, directory: RunDirectory, progress: Progress) -> Prepared:
    found = Prepared(Path(), (), None, config.task.verifier, "", None)
    model_first = makes_prompts(config)  # otherwise what is wrong with a row is told before a warm start
    if model_first:
        found = _with_model(found, config, directory, progress)
    config, begun = begin_rows(config, directory, progress, found.model if model_first else None)
    sources = config.task.training
    train = tuple(prompts_file(directory.task, name) for name in sources)
    held_out = prompts_file(directory.task, HELD_OUT) if config.task.held_out is not None else None
    shares = tuple(source.share for source in sources.values())
    found = dataclasses.replace(found, train=train, held_out=held_out, shares=shares)
    if not model_first:
        found = _with_model(found, config, directory, progress)
    read = _prompts(config, found.model, directory, progress, begun)
    return dataclasses.replace(found, counts=plain(read.counts), verifiers=tuple(read.verifiers))


def _with_model(files: Prepared, config: RunConfig, directory: RunDirectory, progress: Progress) -> Prepared:
    """The same with the model that is given, or a small one that learned from a generated task's demonstrations."""
    if config.model.path is not None:
        return dataclasses.replace(files, model=_existing_model(config.model.path))
    assert config.warm_start.task is not None
    name = config.warm_start.task
    return _warm_started(files, {name: _task("warm_start.task", name)}, config, directory, progress)


def _prompts(config: RunConfig, model: Path, directory: RunDirectory, progress: Progress, begun: bool) -> FoundPrompts:
    """Write the prompts as the run uses them, so that a run that is resumed has the same."""
    progress({"phase": "reading the prompts"})
    read = read_files(config, model, into=directory.task, begun=begun)
    if read.faults:
        raise config_error(read.faults)
    asked = config.task.held_out_size
    if sized(config, read) is not config:  # fewer than were counted before the small model had its tokenizer
        raise ConfigError(
            f"key 'task.held_out_size': found {asked:,}, expected at most {read.counts[HELD_OUT].used:,}: so many prompts of "
            f"{config.task.held_out} are used"
        )
    for name, counts in read.counts.items():
        if str(counts):
            progress({"phase": f"rows of task.{name}", "detail": str(counts)})
    return read


def _existing_model(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"key 'model.path': found {str(path)!r}, expected a directory with config.json, weights and tokenizer.json"
        )
    if not (path / "tokenizer.json").is_file():
        raise ConfigError(f"key 'model.path': found no tokenizer.json in {str(path)!r}, expected a fast tokenizer")
    return path.absolute()
