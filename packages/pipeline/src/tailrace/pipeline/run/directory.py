"""The run directory: everything that a run leaves behind, and all that it needs to go on.

config.json        the resolved configuration
events.jsonl       the event log: the controller's durable state
metrics.jsonl      one line per step and per evaluation
status.json        what is going on now
summary.json       the outcome
report.html        the outcome to look at
checkpoints/N/     the trainer at version N, a Hugging Face model directory as well
trajectories/      the trajectory store, and what was trained on as JSONL
task/, model/      prompts and the model that training started from
tensorboard/       the metrics for TensorBoard
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailrace.pipeline.errors import RunDirectoryError

FORMAT = 1


class RunDirectory:
    """Paths of a run, and the lock that keeps a second run out.

    Args:
        root: the directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.json"
        self.events = root / "events.jsonl"
        self.control_events = root / "controls.jsonl"
        self.metrics = root / "metrics.jsonl"
        self.status = root / "status.json"
        self.summary = root / "summary.json"
        self.report = root / "report.html"
        self.checkpoints = root / "checkpoints"
        self.trajectories = root / "trajectories"
        self.store = self.trajectories / "store.sqlite"
        self.trained = self.trajectories / "trained.jsonl"
        self.task = root / "task"
        self.model = root / "model"
        self.tensorboard = root / "tensorboard"
        self._lock: int | None = None

    @classmethod
    def create(cls, root: Path, config: Mapping[str, Any]) -> RunDirectory:
        """A new run.

        Raises:
            RunDirectoryError: there is something there already. Nothing is overwritten.
        """
        directory = cls(root)
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            what = "a run" if directory.config.exists() else "files" if root.is_dir() else "a file"
            raise RunDirectoryError(f"{root}: found {what}, expected a new directory; use --resume to go on with a run")
        for path in (root, directory.checkpoints, directory.trajectories, directory.task, directory.tensorboard):
            path.mkdir(parents=True, exist_ok=True)
        directory.lock()
        write_json(directory.config, {"format": FORMAT, "run": dict(config)})
        return directory

    @classmethod
    def open(cls, root: Path) -> RunDirectory:
        """A run that exists.

        Raises:
            RunDirectoryError: it does not, or is damaged.
        """
        if not root.is_dir():
            raise RunDirectoryError(f"{root}: no such run directory")
        directory = cls(root)
        directory.read_config()
        return directory

    def read_config(self) -> dict[str, Any]:
        """The resolved configuration.

        Raises:
            RunDirectoryError: it is missing or damaged.
        """
        content = read_json(self.config)
        if content.get("format") != FORMAT or not isinstance(content.get("run"), dict):
            raise RunDirectoryError(f"{self.config}: found format {content.get('format')!r}, expected {FORMAT}")
        run: dict[str, Any] = content["run"]
        return run

    def lock(self) -> None:
        """Keep every other process out until this one ends.

        Raises:
            RunDirectoryError: another process runs here.
        """
        handle = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise RunDirectoryError(
                f"{self.root}: found a run under way here (process {owner}), expected none; choose another --run-dir"
            ) from error
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        self._lock = handle

    def running(self) -> bool:
        """Whether a process holds the lock."""
        path = self.root / "lock"
        if not path.exists():
            return False
        handle = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def unlock(self) -> None:
        """Let others in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a file whole: a reader sees the old content or the new."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=1, default=str) + "\n")
    partial.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        RunDirectoryError: the file is missing or damaged.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path}: no such file; expected a run directory") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise RunDirectoryError(f"{path}: damaged: {error}") from error
    if not isinstance(content, dict):
        raise RunDirectoryError(f"{path}: found {type(content).__name__}, expected an object")
    return content
