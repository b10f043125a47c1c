"""Prompts that an environment says itself: a session of each row is begun before the run, and what it says is the prompt.

rows of files, or the environment's own ──► sessions, as many at once as the run may have ──► rows with a `Beginning`
                                                 └─ fails, or begins otherwise the second time: an error before anything starts

It is asked only where it says what the rows do not, which the first row shows. The rows are kept in the run's directory, so
that a run that is resumed has the same prompts without asking again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tailrace.environment import EnvironmentPool, Observation, SessionError, SetupError
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.task import SourceConfig
from tailrace.pipeline.errors import ConfigError, config_error
from tailrace.pipeline.roles.prompts import COLUMN, Beginning
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.environment_setup import environment_options, has_own_rows, interpreter_of
from tailrace.pipeline.run.prompts.reading import HELD_OUT, SHOWN, TRAIN, merged, prompts_file, sources_of
from tailrace.trajstore import Messages, Prompt, PromptFileError, read_prompts

_ROWS_AT_ONCE = 1000  # of the environment's own, in one call
_TELL_S = 0.5

Located = tuple[str, Prompt]


def begin_rows(
    config: RunConfig,
    directory: RunDirectory,
    progress: Callable[[Mapping[str, Any]], None],
    model: Path | None = None,
) -> tuple[RunConfig, bool]:
    """Ask the environment that the configuration names how each row begins.

    Args:
        config: the configuration.
        directory: the run's directory, where the rows are written.
        progress: told how many rows have begun.
        model: the model's directory, for an environment that makes the model's prompts; None: there is none yet.

    Returns:
        The configuration, whose task has the files of the run's directory instead if there are any, and whether their rows have
        a `Beginning`: not where no environment is named, nor where the rows' prompts say what it begins with.

    Raises:
        ConfigError: the environment cannot be had, a session does not begin, or one begins otherwise the second time.
        PromptFileError: a file has rows that are wrong.
    """
    if config.environment.name is None or config.task.generated:
        return config, False
    try:
        return asyncio.run(_Rows(config, directory, progress, model).begin())
    except SetupError as error:
        raise ConfigError(f"table 'environment': {error}") from error


def row_seed(run: int, source: str, row: int) -> int:
    """The seed of a row of a source: from 0 to 2**31 - 1, the same on every machine."""
    digest = hashlib.blake2b(f"{run} {source} {row}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1


class _Rows:
    def __init__(
        self,
        config: RunConfig,
        directory: RunDirectory,
        progress: Callable[[Mapping[str, Any]], None],
        model: Path | None,
    ) -> None:
        self._config, self._directory, self._progress = config, directory, progress
        table = config.environment
        assert table.name is not None
        self._name = table.name
        self._pool = EnvironmentPool(
            table.name,
            environment_options(config, model),
            workers=table.workers,
            sessions=table.sessions,
            call_s=table.call_s,
            python=interpreter_of(config),
            start_s=table.start_s,
        )
        self._faults: list[str] = []

    async def begin(self) -> tuple[RunConfig, bool]:
        self._progress({"phase": "starting the environment"})
        async with self._pool:
            config = await self._with_own_rows() if has_own_rows(self._config) else self._config
            sources = sources_of(config)
            if not await self._speaks_first(config, *next(iter(sources.items()))):
                return config, False
            rows = {name: self._read(config, source) for name, source in sources.items()}
            await self._begin(config, rows)
        return _with_files(config, {name: self._file("begun", name) for name in rows}), True

    async def _with_own_rows(self) -> RunConfig:
        """The first rows are held out; as many follow as the run trains on in one pass, at most `task.train_size`."""
        task, pipeline = self._config.task, self._config.pipeline
        held = task.held_out_size
        wanted = held + min(task.train_size, pipeline.steps * pipeline.prompts_per_step)
        rows: list[dict[str, Any]] = []
        while len(rows) < wanted:
            try:
                more = await self._pool.rows(len(rows), min(wanted, len(rows) + _ROWS_AT_ONCE))
            except SessionError as error:
                raise ConfigError(f"table 'environment': no rows: {error}") from error
            if not more:
                break
            rows += more
        if len(rows) <= held:
            raise ConfigError(
                f"key 'task.held_out_size': found {held:,}, expected fewer than the {len(rows):,} rows of {self._name!r}: the "
                "first are held out, and the others are trained on"
            )
        parts = {TRAIN: rows[held:wanted], HELD_OUT: rows[:held]}
        for name, part in parts.items():
            self._write("rows", name, ({"prompt": "", "answer": "", **row} for row in part))
        return _with_files(self._config, {name: self._file("rows", name) for name in parts})

    async def _speaks_first(self, config: RunConfig, name: str, source: SourceConfig) -> bool:
        """Whether the environment begins the first row with what its prompt does not say, and does so twice.

        Raises:
            ConfigError: it begins otherwise the second time.
        """
        where, first = next(iter(read_prompts(source.path, render=_as_text, **config.task.columns(source))))
        try:
            said, again = [await self._ask(name, first) for _ in range(2)]
        except SessionError as error:
            raise ConfigError(f"{where}: {error}") from error
        if said != again:
            raise ConfigError(
                f"{where}: the environment {self._name!r} began with {said!r:.80}, and then with {again!r:.80}: expected the "
                "same each time, since all responses to a row have one prompt"
            )
        return not isinstance(said, str) or said not in first.prompt

    def _read(self, config: RunConfig, source: SourceConfig) -> list[Located]:
        rows = list(read_prompts(source.path, render=_only_text, **config.task.columns(source)))
        if self._pool.abilities.tokenized and not self._pool.abilities.reads_prompts:
            for where, prompt in rows:
                if prompt.prompt.strip():
                    raise PromptFileError(
                        f"{where}: found a prompt, expected an empty one: the environment {self._name!r} gives the whole prompt"
                    )
        return rows

    async def _begin(self, config: RunConfig, rows: Mapping[str, Sequence[Located]]) -> None:
        """Begin every row, and write them."""
        began: dict[str, list[Beginning | None]] = {name: [None] * len(part) for name, part in rows.items()}
        waiting = iter([(name, place) for name, part in rows.items() for place in range(len(part))])
        count, done, started_s, told_s = sum(map(len, rows.values())), 0, time.monotonic(), 0.0

        async def work() -> None:
            nonlocal done, told_s
            for name, place in waiting:
                where, prompt = rows[name][place]
                try:
                    said = await self._ask(name, prompt)
                except SessionError as error:
                    self._faults.append(f"{where}: {error}")
                else:
                    seed = row_seed(config.seed, name, prompt.row)
                    began[name][place] = Beginning(where, prompt.prompt, seed, said)
                if len(self._faults) >= SHOWN:
                    return
                done, now_s = done + 1, time.monotonic()
                if now_s - told_s > _TELL_S or done == count:
                    told_s, left_s = now_s, (now_s - started_s) / done * (count - done)
                    detail = f"{done:,} of {count:,} rows"
                    self._progress({"phase": "beginning each row", "detail": detail, "seconds_left": left_s})

        await asyncio.gather(*(work() for _ in range(min(config.environment.sessions, count))))
        if self._faults:
            raise config_error(self._faults)
        for name, part in rows.items():
            self._write("begun", name, map(_row, part, began[name]))

    async def _ask(self, name: str, prompt: Prompt) -> Observation:
        seed = row_seed(self._config.seed, name, prompt.row)
        row = {"prompt": prompt.prompt, "answer": prompt.answer, "metadata": merged(prompt.metadata), "seed": seed}
        opened = await self._pool.open(row)
        await self._pool.close(opened.session)
        return opened.observation

    def _file(self, folder: str, name: str) -> Path:
        return prompts_file(self._directory.task / folder, name)

    def _write(self, folder: str, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        path = self._file(folder, name)
        path.parent.mkdir(exist_ok=True)
        with path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def _row(located: Located, beginning: Beginning | None) -> dict[str, Any]:
    assert beginning is not None
    _, prompt = located
    row = {"prompt": prompt.prompt, "answer": prompt.answer, "verifier": prompt.verifier}
    return {**row, "metadata": merged(prompt.metadata), COLUMN: beginning.plain()}


def _with_files(config: RunConfig, files: Mapping[str, Path]) -> RunConfig:
    """The configuration with a task that has these files instead of its own."""
    task = config.task
    plain = {"prompt_column": None, "answer_column": None}
    sources = [
        each.model_copy(update={"path": files.get(f"sources.{at}"), **plain}) for at, each in enumerate(task.sources)
    ]
    update = {"train": files.get(TRAIN), "held_out": files.get(HELD_OUT), "sources": tuple(sources)}
    columns = {"prompt_column": "prompt", "answer_column": "answer", "verifier_column": "verifier"}
    return config.model_copy(update={"task": task.model_copy(update={**update, **columns})})


def _as_text(prompt: str | Messages) -> str:
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)


def _only_text(prompt: str | Messages) -> str:
    if not isinstance(prompt, str):
        raise PromptFileError("found chat messages, expected text: what the environment says first follows it")
    return prompt
