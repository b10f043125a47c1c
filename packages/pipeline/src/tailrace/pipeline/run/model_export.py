"""A run's model as a Hugging Face directory that transformers and vLLM load, with a model card. No trainer is started.

    RUN/checkpoints/V ──► a hidden directory: weights in shards, tokenizer, generation_config.json, README.md ──► renamed to DIR

The run may go on meanwhile: what is exported is open before the first byte is copied.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import RunDirectoryError, RunWriteError
from tailrace.pipeline.run.directory import RunDirectory, read_json
from tailrace.pipeline.run.prompts.stop_tokens import stop_tokens
from tailrace.trainer.adapters import ADAPTER_CONFIG
from tailrace.trainer.checkpoint_export import SHARD_BYTES, ExportSource, put
from tailrace.trainer.checkpoint_files import checkpoints, partial_directory, put_in_place, sync
from tailrace.trainer.errors import CheckpointError

_SPARE_BYTES = 1 << 20
_GENERATION = "generation_config.json"
CARD = "README.md"
_FOLDERS = re.compile(r"(^|[=:\s])(?:/[^/\s:]+)+/")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Args:
        directory: the Hugging Face directory.
        run: the run.
        version: the version of the weights.
        parameters: elements of all tensors, tied ones once.
        adapter: whether they are an adapter's alone.
        files: bytes of each file, by name.
    """

    directory: Path
    run: Path
    version: int
    parameters: int
    adapter: bool
    files: Mapping[str, int]


def export(
    directory: RunDirectory,
    out: Path,
    *,
    version: int | None = None,
    merge: bool = False,
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Exported:
    """Write a run's model.

    Args:
        directory: the run, which may be under way.
        out: a directory that is new or empty.
        version: which checkpoint; None: the newest.
        merge: whether an adapter is merged into the base; otherwise it is written as PEFT has it.
        shard_bytes: most bytes of tensors in one file.
        progress: called with the bytes of weights that are written, and all.

    Raises:
        RunDirectoryError: the run has no such checkpoint, or `out` is not empty. Nothing was written.
        RunWriteError: there is no room, or the disk is broken. Nothing is left of it.
        CheckpointError: the checkpoint is damaged. Nothing is left of what was written.
        AdapterError: there is no adapter to merge, or the base is gone or another one. Nothing was written.
    """
    _check_new(out)
    config = directory.configuration()
    base = _base(directory) if merge else None
    with _source(directory, version, base, shard_bytes) as source, _in_place(out, source.nbytes) as partial:
        try:
            source.write(partial, progress)
            put(partial / _GENERATION, _json(_generation(config, partial)))
            if source.adapter:  # for PEFT, which knows the rest from the base
                (partial / "config.json").unlink()
                _name_base(partial / ADAPTER_CONFIG, _base(directory))
            put(partial / CARD, _card(directory, config, source).encode())
            sync(partial)
        except RunDirectoryError:
            raise
        except OSError as error:
            raise _unwritten(out, error) from error
        files = {path.name: path.stat().st_size for path in sorted(partial.iterdir())}
        return Exported(out, directory.root, source.version, source.parameters, source.adapter, files)


@contextmanager
def _source(
    directory: RunDirectory, version: int | None, base: Path | None, shard_bytes: int
) -> Iterator[ExportSource]:
    """The wanted checkpoint, opened. The newest one may be removed by the run before it is open: then there is a newer one."""
    for attempts_left in (2, 1, 0):
        found = checkpoints(directory.checkpoints)
        if not found:
            raise RunDirectoryError(
                f"{directory.root}: found no checkpoint, expected a run that has saved one"
                + (" (a simulated run has none)" if directory.simulated is not None else "")
            )
        if version is not None and version not in found:
            there = ", ".join(map(str, found))
            raise RunDirectoryError(
                f"{directory.root}: found no checkpoint of version {version}, expected one of: {there}"
            )
        path = found[max(found) if version is None else version]
        try:
            source = ExportSource(path, base=base, shard_bytes=shard_bytes)
        except CheckpointError:
            if path.exists() or not attempts_left:
                raise
            continue
        with source:
            yield source
        return


def _base(directory: RunDirectory) -> Path:
    """The model directory that the run began with."""
    found = directory.noted(str(read_json(directory.prepared)["model"]))
    if not found.is_dir():
        raise RunDirectoryError(f"{found}: found no such directory, expected the model that the run began with")
    return found


def _name_base(settings: Path, base: Path) -> None:
    """Where PEFT finds the base: it may have been moved with the run."""
    found = json.loads(settings.read_text(encoding="utf-8"))
    put(settings, _json(found | {"base_model_name_or_path": str(base.absolute())}))


def _check_new(out: Path) -> None:
    try:
        if not out.exists() or (out.is_dir() and not any(out.iterdir())):
            return
    except OSError as error:
        raise RunDirectoryError(f"{out}: could not be read: {error.strerror}") from error
    what = "files" if out.is_dir() else "a file"
    raise RunDirectoryError(f"{out}: found {what}, expected a new or an empty directory; nothing was overwritten")


@contextmanager
def _in_place(out: Path, nbytes: int) -> Iterator[Path]:
    """A hidden directory beside `out`, which gets its name if all goes well and is removed if not."""
    target = out.absolute()
    partial = partial_directory(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir(exist_ok=True)
        handle = os.open(partial, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _unwritten(out, error) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RunDirectoryError(f"{out}: found another export under way there, expected none") from error
        try:
            for left in partial.iterdir():  # of an export that was killed
                left.unlink()
            free = shutil.disk_usage(partial).free
            if free < nbytes + _SPARE_BYTES:
                raise RunDirectoryError(
                    f"{out}: found {free / 1e9:,.3f} GB free, expected at least {(nbytes + _SPARE_BYTES) / 1e9:,.3f} GB; "
                    "choose another --out"
                )
            yield partial
            put_in_place(partial, target)
        except BaseException:
            with suppress(OSError):
                shutil.rmtree(partial)
            raise
    finally:
        os.close(handle)


def _unwritten(out: Path, error: OSError) -> RunWriteError:
    return RunWriteError(error.errno, error.strerror or str(error), str(out))


def _json(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(content, indent=2) + "\n").encode()


def _generation(config: RunConfig, model: Path) -> dict[str, Any]:
    """How the run drew its responses, over what the model came with."""
    path = model / _GENERATION
    given = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    given.pop("_from_model_config", None)  # it is from the run, too
    own = json.loads((model / "config.json").read_text(encoding="utf-8"))
    special = {key: own[key] for key in ("bos_token_id", "pad_token_id") if own.get(key) is not None}
    stops = stop_tokens(config, model)
    drawn = {"do_sample": True, "temperature": config.rollout.temperature, "top_k": 0, "top_p": 1.0}
    ends = {"eos_token_id": list(stops) if len(stops) > 1 else stops[0]} if stops else {}
    return special | given | drawn | ends | {"max_new_tokens": config.rollout.max_tokens}


# The model card


def _card(directory: RunDirectory, config: RunConfig, source: ExportSource) -> str:
    """The model card: how it was trained and what was measured, and the keys of the configuration that are not defaults."""
    task = config.task.name or ", ".join(config.task.mix) or "prompts of files"
    began = "a small model that the run built" if config.model.path is None else config.model.path.name
    keys = json.dumps(_public(config.model_dump(exclude_defaults=True, exclude={"fleet"})), indent=1, default=str)
    return "\n".join(
        [
            "---",
            f"library_name: {'peft' if source.adapter else 'transformers'}",
            "pipeline_tag: text-generation",
            "tags:",
            "- tailrace",
            "- reinforcement-learning",
            "---",
            "",
            f"# Version {source.version} of the run {directory.root.absolute().name}",
            "",
            f"Trained by reinforcement learning with Tailrace {directory.version}.".replace(" .", "."),
            "",
            "| | |",
            "|---|---|",
            f"| app | {config.app} |",
            f"| task | {task} |",
            f"| began with | {began} |",
            f"| steps | {source.version} of {config.pipeline.steps} |",
            f"| seed | {config.seed} |",
            f"| parameters{' of the adapter' if source.adapter else ''} | {source.parameters:,} |",
            "",
            *_figures(directory, source.version),
            "## Configuration",
            "",
            "What differs from the defaults; of paths their last part.",
            "",
            "```json",
            keys,
            "```",
            "",
        ]
    )


def _figures(directory: RunDirectory, version: int) -> Sequence[str]:
    """What was measured on held-out problems: before training, and last at this version or before."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in _rows(directory.metrics):
        if row.get("kind") == "evaluation" and int(row.get("version", 0)) <= version and row.get("problems"):
            found[str(row["mode"]), int(row["version"])] = row
    lines = []
    for mode in dict.fromkeys(mode for mode, _ in found):
        versions = sorted(one for other, one in found if other == mode)
        for one in dict.fromkeys((versions[0], versions[-1])):
            row = found[mode, one]
            accuracy = "" if row.get("accuracy") is None else f"{row['accuracy']:.3f}"
            lines.append(f"| {mode} | {one} | {accuracy} | {row['reward']:.3f} | {row['problems']} |")
    if not lines:
        return ()
    return (
        "## On held-out problems",
        "",
        "| decoding | version | accuracy | reward | problems |",
        "|---|---|---|---|---|",
        *lines,
        "",
    )


def _rows(metrics: Path) -> Iterator[dict[str, Any]]:
    """The lines of the metrics that are whole: the run may write the last one now."""
    if not metrics.is_file():
        return
    with metrics.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            with suppress(ValueError):
                row = json.loads(line)
                if isinstance(row, dict):
                    yield row


def _public(value: Any) -> Any:
    """The configuration without the places of this machine: of paths their last part."""
    if isinstance(value, Mapping):
        return {str(key): _public(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_public(each) for each in value]
    if isinstance(value, PurePath):
        return value.name
    return _FOLDERS.sub(r"\1", value) if isinstance(value, str) else value
