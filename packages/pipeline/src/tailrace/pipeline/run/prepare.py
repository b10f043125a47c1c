"""What a run needs before it starts: prompts, held-out problems, a model, and the controls' demonstrations."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.prompts import DecodingMode
from tailrace.pipeline.run.directory import RunDirectory, read_json, write_json

SAMPLED, GREEDY, FORCED, FORCED_GREEDY = "sampled", "greedy", "forced", "forced-greedy"

Progress = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """Files of a run.

    Args:
        forced_prefix: what a response in the worked style begins with; empty where there is no such control.
        demonstrations: JSON file with the (prompt, response) pairs of the warm start; None without one.
    """

    model: Path
    train: Path
    held_out: Path | None
    verifier: str
    forced_prefix: str
    demonstrations: Path | None
    warm_start_s: float = 0.0
    warm_start_cached: bool = False

    def modes(self) -> dict[str, DecodingMode]:
        """The decoding modes of evaluations."""
        modes = {SAMPLED: DecodingMode(1.0), GREEDY: DecodingMode(0.0)}
        if self.forced_prefix:
            modes[FORCED] = DecodingMode(1.0, self.forced_prefix)
            modes[FORCED_GREEDY] = DecodingMode(0.0, self.forced_prefix)
        return modes


def prepare(config: RunConfig, directory: RunDirectory, progress: Progress) -> Prepared:
    """Make or find what the run needs; a second call finds it.

    Raises:
        ConfigError: something that the configuration names is not there.
    """
    note = directory.task / "prepared.json"
    if note.exists():
        found = read_json(note)
        paths = {key: Path(found[key]) if found[key] else None for key in ("held_out", "demonstrations")}
        return Prepared(**{**found, **paths, "model": Path(found["model"]), "train": Path(found["train"])})
    prepared = _from_files(config) if config.task.name is None else _generated(config, directory, progress)
    write_json(note, {name: getattr(prepared, name) for name in Prepared.__slots__})
    return prepared


def cache_directory() -> Path:
    """Where warm starts are kept between runs: ``$TAILRACE_CACHE``, else the user's cache directory."""
    own = os.environ.get("TAILRACE_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tailrace"


def _generated(config: RunConfig, directory: RunDirectory, progress: Progress) -> Prepared:
    from tailrace.reward.errors import UnknownTaskError
    from tailrace.reward.tasks import get_task, write_jsonl

    assert config.task.name is not None
    try:
        task = get_task(config.task.name)
    except UnknownTaskError as error:
        raise ConfigError(f"key 'task.name': {error}") from error
    progress({"phase": "preparing the task"})
    train, held_out = directory.task / "train.jsonl", directory.task / "held_out.jsonl"
    rows = task.generate("train", config.task.train_size, config.seed)
    write_jsonl(train, rows)
    write_jsonl(held_out, task.generate("heldout", config.task.held_out_size, config.seed))
    if config.model.path is not None:
        model = _existing_model(config.model.path)
        return Prepared(model, train, held_out, rows[0]["verifier"], task.forced_prefix, None)

    from tailrace.trainer.small import SmallModel
    from tailrace.trainer.warmstart import Stage, TokenizerShape, WarmStartConfig, warm_start

    warm = config.warm_start
    pairs = task.warm_start(warm.demonstrations, config.seed + 1)
    demonstrations = directory.task / "demonstrations.json"
    demonstrations.write_text(json.dumps(pairs))
    small = config.model.small
    result = warm_start(
        directory.model,
        cache_directory() / "warmstart",
        demonstrations=[Stage(warm.steps, pairs)],
        config=WarmStartConfig(
            steps=warm.steps, batch=warm.batch, lr=warm.lr, processes=warm.processes, seed=config.seed, **warm.options
        ),
        model=SmallModel(**small.model_dump()) if small is not None else SmallModel(),
        tokenizer=TokenizerShape(**config.model.tokenizer),
        progress=lambda row: progress({"phase": "warm start", **row}),
    )
    return Prepared(
        result.directory,
        train,
        held_out,
        rows[0]["verifier"],
        task.forced_prefix,
        demonstrations,
        result.seconds,
        result.cached,
    )


def _from_files(config: RunConfig) -> Prepared:
    if config.task.train is None:
        raise ConfigError(
            "key 'task': found neither 'name' nor 'train', expected a generated task or a file of prompts"
        )
    if config.model.path is None:
        raise ConfigError(
            "key 'model.path': found none, expected a Hugging Face model directory to train on these prompts"
        )
    files = [config.task.train, config.task.held_out]
    for key, path in zip(("task.train", "task.held_out"), files, strict=True):
        if path is not None and not path.is_file():
            raise ConfigError(f"key {key!r}: found {str(path)!r}, which is no file; expected JSONL or Parquet")
    held_out = config.task.held_out.absolute() if config.task.held_out else None
    model = _existing_model(config.model.path)
    return Prepared(model, config.task.train.absolute(), held_out, config.task.verifier, "", None)


def _existing_model(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ConfigError(
            f"key 'model.path': found {str(path)!r}, expected a directory with config.json, weights and tokenizer.json"
        )
    if not (path / "tokenizer.json").is_file():
        raise ConfigError(f"key 'model.path': found no tokenizer.json in {str(path)!r}, expected a fast tokenizer")
    return path.absolute()
