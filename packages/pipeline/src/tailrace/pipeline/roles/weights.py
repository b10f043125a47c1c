"""Where a replica's weights come from: the relays or, for a version that they dropped, its checkpoint (Laminar, section 4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailrace.paramserver import ProtocolError, RelayReader, RelayTimeout, RelayUnreachable
from tailrace.pipeline.errors import RoleError


class RelayWeights:
    """Weight versions for a replica.

    Args:
        token: shared secret of the run's peers.
        checkpoints: directory with one checkpoint per version.
    """

    def __init__(self, *, token: str, checkpoints: Path) -> None:
        self._token, self._checkpoints = token, checkpoints
        self._sources: tuple[str, ...] = ()
        self._best = ""  # of the sources that the reader was made for
        self._reader: RelayReader | None = None

    def use(self, sources: Sequence[str]) -> None:
        """Addresses of the relays that live, best first. From any thread: a load that is under way may go on with them."""
        self._sources = tuple(sources)

    @contextmanager
    def load(self, version: int, timeout_s: float) -> Iterator[list[tuple[str, Any]]]:
        """The tensors of a version, valid inside the context.

        Raises:
            RoleError: there is neither a relay nor a checkpoint of the version.
            ParamServerError: no relay serves it, and there is no checkpoint of it.
        """
        directory = self._checkpoints / str(version)
        saved = directory.is_dir()
        if not self._sources and not saved:
            raise RoleError(f"found neither a relay nor a checkpoint of version {version}, expected one of them")
        if saved and not self._served(version):
            from tailrace.trainer import load_weights_file

            yield list(load_weights_file(directory))
            return
        with self._open().lease(version, timeout_s=timeout_s) as weights:
            yield list(weights.items())

    def close(self) -> None:
        """Leave the relays."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _served(self, version: int) -> bool:
        """Whether a relay has the version, or can still get it. It cannot once it has a newer one."""
        if not self._sources:
            return False
        try:
            visible = self._open().versions()
        except (RelayUnreachable, RelayTimeout, ProtocolError):
            return False
        return version in visible or (bool(visible) and max(visible) < version)

    def _open(self) -> RelayReader:
        """A reader of whichever sources there are at any time. It stays with one that works until another one is the best."""
        best = self._sources[0]
        if self._reader is None or best != self._best:
            self.close()
            self._reader, self._best = RelayReader(lambda: self._sources, token=self._token), best
        return self._reader
