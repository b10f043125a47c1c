"""The run directory: all results of a run, and everything needed to resume it.

config.json        the resolved configuration
events.jsonl       the event log: the controller's durable state; controls.jsonl is that of the controls
metrics.jsonl      one line per step and per evaluation
status.json        the current state
controller.log     what the controller's processes print
summary.json       the results
report.html        the results to look at
checkpoints/N/     the trainer at version N, a Hugging Face model directory as well
trajectories/      the trajectory store, and the trajectories that were trained on (`tailrace.trajstore.read_trained`)
task/, model/      the prompts as they are used, and the model that training started from
tensorboard/       the metrics for TensorBoard
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tailrace.pipeline import __version__
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.errors import RunDirectoryError, RunWriteError
from tailrace.pipeline.run.eventlog import read_log

FORMAT = 2
_ASKED_S = 0.2
"""For how long a lock that is held may be that of processes that ask whether it is."""


class RunDirectory:
    """The paths of a run, and the lock against a second run in the same directory.

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
        self.task = root / "task"
        self.prepared = self.task / "prepared.json"
        self.model = root / "model"
        self.tensorboard = root / "tensorboard"
        self._lock: int | None = None

    @classmethod
    def create(
        cls,
        root: Path,
        config: Mapping[str, Any],
        *,
        simulated: Mapping[str, Any] | None = None,
        beside: Mapping[str, Any] | None = None,
    ) -> RunDirectory:
        """Create and lock the directory of a new run, private or not. If this raises, no file of it is left.

        Args:
            root: the directory.
            config: the resolved configuration.
            simulated: for a simulated run, data that its configuration lacks: `steps`, the batches that its pipeline would
                train on if it were not stopped, `warm_up`, those that are not measured, `trainer_devices`, and further data
                of the simulator.
            beside: what its pipeline has beside the configuration, by the names of `PipelineSpec`, and `relays`.

        Raises:
            RunDirectoryError: the directory is not empty. Nothing is overwritten.
            RunWriteError: the directory cannot be created.
        """
        directory = cls(root)
        check_new(directory)
        new = [path for path in (root, *root.parents) if not path.exists()]
        try:
            _make(root)
            if config.get("private", True):
                _make_private(root)
            directory.lock()
            check_new(directory)  # another may have made a run there meanwhile
        except BaseException:
            directory.unlock()
            _remove_empty(new)
            raise
        try:
            roles = (directory.checkpoints, directory.trajectories, directory.task, directory.tensorboard)
            for path in roles if simulated is None else ():
                _make(path)
            content = {"format": FORMAT, "version": __version__, "run": dict(config), "beside": dict(beside or {})}
            write_json(
                directory.config, content if simulated is None else {**content, "simulated": simulated}, sync=True
            )
        except BaseException:
            for path in root.iterdir():  # it was empty before, and the lock keeps others out
                with suppress(OSError):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            directory.unlock()
            _remove_empty(new)
            raise
        return directory

    @classmethod
    def open(cls, root: Path) -> RunDirectory:
        """Open the directory of an existing run.

        Raises:
            RunDirectoryError: the directory does not exist or is damaged.
        """
        if not root.is_dir():
            raise RunDirectoryError(f"{root}: no such run directory")
        directory = cls(root)
        directory.read_config()
        return directory

    def read_config(self) -> dict[str, Any]:
        """The resolved configuration, as plain data.

        Raises:
            RunDirectoryError: the file is missing or damaged.
        """
        content = read_json(self.config)
        run = content.get("run")
        if not isinstance(run, dict) or content.get("format") != FORMAT:
            keys = ", ".join(content) if len(content) <= 5 else f"{len(content)} keys"
            found = f"a run of format {content.get('format')!r}" if "run" in content else f"something else ({keys})"
            raise RunDirectoryError(
                f"{self.config}: found {found}, expected a run of format {FORMAT}; read it with the version that wrote it"
            )
        return run

    def change(self, config: Mapping[str, Any], changed: Mapping[str, Sequence[Any]]) -> None:
        """Replace the configuration of a run that resumes. The one that the event log began with is kept.

        Args:
            config: the resolved configuration from now on.
            changed: the value before and after by key.
        """
        content = read_json(self.config)
        if self.decided():
            content.setdefault("began_with", content["run"])
        entry = {"at": time.time(), "changed": {key: list(values) for key, values in changed.items()}}
        content["changes"] = [*content.get("changes", []), entry]
        write_json(self.config, {**content, "run": dict(config)}, sync=True)

    def changes(self) -> list[dict[str, Any]]:
        """Each `change`: `at` in seconds since the epoch, and `changed`, the value before and after by key."""
        return list(read_json(self.config).get("changes", []))

    def began_with(self) -> RunConfig:
        """The configuration that the event log began with.

        Raises:
            RunDirectoryError, ConfigError: the file is missing, damaged or not valid.
        """
        return validate([(str(self.config), read_json(self.config).get("began_with") or self.read_config())])

    def configuration(self) -> RunConfig:
        """The resolved configuration, validated.

        Raises:
            RunDirectoryError, ConfigError: the file is missing, damaged or not valid.
        """
        return validate([(str(self.config), self.read_config())])

    def decided(self) -> bool:
        """Whether a controller has decided anything: the log has an instant, not just its first line.

        Raises:
            RunDirectoryError: the log is damaged.
        """
        return self.events.exists() and next(read_log(self.events), None) is not None

    @property
    def trained(self) -> Path:
        """The trajectories that were trained on; lines of JSON if the run was begun before they were packed."""
        lines = self.trajectories / "trained.jsonl"
        return lines if lines.exists() else self.trajectories / "trained.packed"

    @property
    def version(self) -> str:
        """The version of `tailrace-pipeline` that made the directory; empty for an older one."""
        return str(read_json(self.config).get("version", ""))

    @property
    def beside(self) -> Mapping[str, Any]:
        """The `beside` of `create`. A directory of an older version has only the steps of a simulated run."""
        content = read_json(self.config)
        simulated = content.get("simulated") or {}
        return content.get("beside") or {name: simulated[name] for name in ("steps",) if name in simulated}

    @property
    def simulated(self) -> Mapping[str, Any] | None:
        """The `simulated` data of `create`; None for a real run."""
        found = read_json(self.config).get("simulated")
        return found if isinstance(found, dict) else None

    def noted(self, path: str) -> Path:
        """A path that the run noted, from where its directory is now: those in it are noted relative to it.

        One that is not there, noted before a run could be moved, is looked for by its last parts.
        """
        noted, root = Path(path), self.root.absolute()
        if (root / noted).exists():
            return root / noted
        moved = (root.joinpath(*noted.parts[-depth:]) for depth in (1, 2))
        return next((place for place in moved if place.exists()), root / noted)

    def lock(self) -> None:
        """Keep every other process out until this one ends.

        Raises:
            RunDirectoryError: another process runs here, or the file system has no locks.
        """
        path = self.root / "lock"
        handle = self._locked(path)
        while not _is_at(handle, path):  # another has replaced it meanwhile, see `lock_anew`
            os.close(handle)
            handle = self._locked(path)
        with suppress(OSError):  # on a full disk the lock still holds, only its owner's process id is missing
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
        self._lock = handle

    def _locked(self, path: Path) -> int:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise _unwritten(path, error) from error
        try:
            lock_soon(handle, _ASKED_S)  # somebody may ask `running`
        except BlockingIOError as error:
            owner = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise RunDirectoryError(
                f"{self.root}: found a run under way here (process {owner}), expected none; choose another --run-dir"
            ) from error
        except OSError as error:
            os.close(handle)
            path.unlink(missing_ok=True)
            raise RunDirectoryError(
                f"{path}: could not be locked: {error.strerror}; choose a local --run-dir"
            ) from error
        return handle

    def lock_anew(self) -> None:
        """Lock it although a process may hold the lock that is stopped: that one keeps a lock which counts no more.

        Raises:
            RunDirectoryError: see `lock`.
        """
        (self.root / "lock").unlink(missing_ok=True)
        self.lock()

    def running(self) -> bool:
        """Whether a process holds the lock. Who asks shares it for an instant: two who do are not taken for it."""
        path = self.root / "lock"
        if not path.exists():
            return False
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(handle)
        return False

    def unlock(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def write_json(path: Path, content: Mapping[str, Any], *, sync: bool = False) -> None:
    """Replace a file by a JSON object; see `write_text`."""
    write_text(path, json.dumps(content, indent=1, default=str) + "\n", sync=sync)


def write_text(path: Path, text: str, *, sync: bool = False) -> None:
    """Replace a file at once: a reader sees the old text or the new; if this raises, the old.

    Two processes may do so at a time: a controller that was stopped in here, and the one that took its place meanwhile.

    Args:
        path: the file.
        text: the new text.
        sync: return only once it survives a crash of the machine.

    Raises:
        RunWriteError: the disk is full or broken.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w") as file:
            file.write(text)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
        if sync:
            _sync_entries(path.parent)
    except BaseException as error:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritten(path, error) from error
        raise


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        RunDirectoryError: the file is missing or damaged.
    """
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError as error:
        raise RunDirectoryError(f"{path}: no such file; expected a run directory") from error
    except OSError as error:
        raise RunDirectoryError(f"{path}: could not be read: {error.strerror}") from error
    except ValueError as error:
        raise RunDirectoryError(f"{path}: damaged: {error}") from error
    if not isinstance(content, dict):
        raise RunDirectoryError(f"{path}: found {type(content).__name__}, expected an object")
    return content


def check_new(directory: RunDirectory) -> None:
    """Whether a run may be made there.

    Raises:
        RunDirectoryError: there is something there already, or no directory can be made there.
    """
    root = directory.root
    try:
        if not root.exists():
            _check_parent(root)
            return
        if root.is_dir() and all(path.name == "lock" for path in root.iterdir()):
            return
    except RunDirectoryError:
        raise
    except OSError as error:
        raise RunDirectoryError(f"{root}: could not be read: {error.strerror}") from error
    what = "a run" if directory.config.exists() else "files" if root.is_dir() else "a file"
    raise RunDirectoryError(f"{root}: found {what}, expected a new directory; use --resume to go on with a run")


def _check_parent(root: Path) -> None:
    above = next(path for path in root.absolute().parents if path.exists())
    if not above.is_dir():
        raise RunDirectoryError(f"{root}: found the file {above} on the way, expected directories")
    if not os.access(above, os.W_OK | os.X_OK):
        raise RunDirectoryError(f"{root}: {above} cannot be written to; choose another --run-dir")


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritten(path, error) from error


def _make_private(path: Path) -> None:
    try:
        path.chmod(stat.S_IRWXU)
    except OSError as error:  # somebody else's, or a file system without modes
        raise RunDirectoryError(
            f"{path}: cannot be made private ({error.strerror}); choose another --run-dir, or --set private=false"
        ) from error


def _remove_empty(directories: Sequence[Path]) -> None:
    """Remove directories, innermost first, as far as they are empty."""
    for path in directories:
        with suppress(OSError):
            path.rmdir()


def _is_at(handle: int, path: Path) -> bool:
    """Whether an open file is the one at a path."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


def _sync_entries(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def lock_soon(handle: int, within_s: float) -> None:
    """Lock a file, or a directory, that another process may hold for a moment.

    Args:
        within_s: seconds that it may.

    Raises:
        BlockingIOError: another process has held it all the while.
        OSError: it cannot be locked.
    """
    until = time.monotonic() + within_s
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.01)


def _unwritten(path: Path, error: OSError) -> RunWriteError:
    return RunWriteError(error.errno, error.strerror or str(error), str(path))
