"""Observers that strike a run at an event: the contract suites of hosts use them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tailrace import contracts as c
from tailrace.controller.view import RunView
from tailrace.faulttol import FaultKind
from tailrace.runtime.executor.deployment import RANKER, TRAINER
from tailrace.runtime.executor.executor import Executor, Observer


class Dies(Exception):  # noqa: N818 - it stands for the driver's death
    """Raised to end the driver, as if it died."""


class Striking(Observer):
    """An observer that may strike members of the run: whoever runs it sets `executor`."""

    executor: Executor | None = None

    def strike(self, role: str, name: str) -> None:
        """Kill a member."""
        assert self.executor is not None
        self.executor.members[role, name].member.strike(FaultKind.KILL)

    def tick(self, now: float, executor: Executor) -> None:
        """Does nothing."""


class Watching(Striking):
    """An observer that acts once, at the first event of a kind; if `version` is not None, at an event of that version."""

    def __init__(self, kind: type, version: int | None) -> None:
        self._kind, self._version = kind, version
        self._done = False

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        del now, commands, run
        versions = [getattr(event, "version", None) for event in events if type(event) is self._kind]
        if not self._done and (self._version in versions if self._version is not None else versions):
            self._done = True
            self.act()

    def act(self) -> None:
        """End the driver."""
        raise Dies


class Damages(Watching):
    """Damages the newest checkpoint once it is durable, and kills the trainer."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(c.Durable, int(checkpoint.name))
        self.checkpoint = checkpoint

    def act(self) -> None:
        largest = max((file for file in self.checkpoint.rglob("*") if file.is_file()), key=lambda f: f.stat().st_size)
        content = bytearray(largest.read_bytes())
        content[len(content) // 2] ^= 0xFF
        largest.write_bytes(content)
        self.strike(TRAINER, "0")


class Kills(Striking):
    """Kills a rank of the trainer while a batch is streamed: some of its gradients were added, and its `Step` was not given.

    Groups that are complete together go out together, with their `Step`. Therefore the first batch after `version` of which
    one group came late is used: `killed` is its version, None until then.
    """

    def __init__(self, rank: str, version: int) -> None:
        self._rank, self._version = rank, version
        self._steps: set[int] = set()
        self.killed: int | None = None

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        del now, run
        self._steps.update(command.version for command in commands if isinstance(command, c.Step))
        added = {event.version for event in events if isinstance(event, c.Accumulated)} - self._steps
        if self.killed is None and added and min(added) >= self._version:
            self.killed = min(added)
            self.strike(TRAINER, self._rank)


class KillsTheRanker(Striking):
    """Kills the ranker as soon as it says that it has learned, once; `killed` says whether it did."""

    killed = False

    def observe(self, now: float, events: Sequence[c.Event], commands: Sequence[c.Command], run: RunView) -> None:
        del now, commands, run
        if not self.killed and any(isinstance(event, c.Activity) and event.role == RANKER for event in events):
            self.killed = True
            self.strike(RANKER, "0")
