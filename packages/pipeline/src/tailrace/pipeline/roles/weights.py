"""Where a replica's weights come from: the relay of its node, or, for a version the relays dropped, a checkpoint (LAM-9)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tailrace.paramserver import RelayReader


class RelayWeights:
    """Weight versions for a replica.

    Args:
        token: shared secret of the run's peers.
        checkpoints: directory with one checkpoint per version.
    """

    def __init__(self, *, token: str, checkpoints: Path) -> None:
        self._token = token
        self._checkpoints = checkpoints
        self._address: Any = None
        self._reader: RelayReader | None = None

    def use(self, address: Any) -> None:
        """The relay to read from; a new one after the old one died."""
        if address != self._address:
            self.close()
            self._address = address

    @contextmanager
    def load(self, version: int, timeout_s: float) -> Iterator[list[tuple[str, Any]]]:
        """The tensors of a version, valid inside the context.

        Raises:
            VersionRetiredError, VersionNotYetError: no relay and no checkpoint has it.
        """
        if self._reader is None:
            self._reader = RelayReader(self._address, token=self._token)
        directory = self._checkpoints / str(version)
        visible = self._reader.versions()
        passed = not visible or max(visible) > version  # the relay will not get it any more; else it is on its way
        if version not in visible and passed and directory.is_dir():
            from tailrace.trainer import load_weights_file

            yield list(load_weights_file(directory))
            return
        with self._reader.lease(version, timeout_s=timeout_s) as weights:
            yield list(weights.items())

    def close(self) -> None:
        """Leave the relay."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None
