"""Deadlines of commands. If no event with a command's number arrives in time, its member counts as down.

A `Route` has no deadline here, since the length of a response is unknown. A replica that stands still reports it itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tailrace import contracts as c
from tailrace.pipeline.executor.deployment import Deadlines
from tailrace.pipeline.executor.running import Running
from tailrace.pipeline.executor.waits import Waits

Down = Callable[[Running, BaseException], None]


class Answers:
    """The commands that are not answered yet.

    Args:
        waits: the executor's waits.
        deadlines: seconds for each kind of command.
        down: called when a member does not answer in time.
    """

    def __init__(self, waits: Waits, deadlines: Deadlines, down: Down) -> None:
        self._waits, self._deadlines, self._down = waits, deadlines, down
        self._numbers: dict[int, tuple[int, Running]] = {}  # waits by the command's number
        self._publishing: int | None = None
        self._unscored: dict[str, None] = {}
        self._scoring: int | None = None
        self._heard: dict[type, Callable[[c.Event], None]] = dict.fromkeys(
            (c.Stepped, c.Accumulated, c.Durable, c.Pulled, c.PullFailed, c.Discarded), self._answered
        )
        self._heard |= {c.Published: self._published}

    def expect(self, running: Running, command: c.Command, now: float) -> None:
        """Wait for the answer to a command that goes to a member."""
        limits = self._deadlines
        match command:
            case c.Step(version=version):
                self._add(running, command.seq, f"{running} to train version {version}", limits.step_s, now)
            case c.Accumulate(version=version, cell=None):
                self._add(running, command.seq, f"{running} to train a part of version {version}", limits.step_s, now)
            case c.Accumulate(version=version, cell=cell):
                what = f"cell {cell} of {running} to add gradients of version {version}"
                self._add(running, command.seq, what, limits.step_s, now)
            case c.Publish(version=version, relays=relays):
                if self._publishing is not None:  # a newer version replaces one that is not published yet
                    self._end(self._publishing)
                self._publishing = command.seq if relays else None  # without relays nothing can be published
                if relays:
                    self._add(running, command.seq, f"version {version} to be published", limits.publish_s, now)
            case c.Checkpoint(version=version):
                what = f"the checkpoint of version {version} to be durable"
                self._add(running, command.seq, what, limits.publish_s, now)
            case c.Pull(version=version):
                self._add(running, command.seq, f"{running} to pull version {version}", limits.pull_s, now)
            case c.Abort():
                self._add(running, command.seq, "the store to delete dropped trajectories", limits.score_s, now)
            case _:
                pass

    def scoring(self, scorer: Running, names: Sequence[str], now: float) -> None:
        """Wait for the scores of trajectories. The deadline counts from the scorer's last outcome."""
        self._unscored.update(dict.fromkeys(names))
        if self._scoring is None:
            self._scoring = self._waits.add(
                "trajectories to be scored",
                now,
                self._deadlines.score_s,
                None,
                lambda _: None,
                lambda error: self._down(scorer, error),
                scorer,
            )

    def dropped(self, names: Sequence[str]) -> None:
        """Stop waiting for the scores of trajectories."""
        for name in names:
            self._unscored.pop(name, None)
        self._settle_scores()

    def heard(self, events: Sequence[c.Event], now: float) -> None:
        """End or renew waits after events of members."""
        scored = False
        for event in events:
            kind = type(event)
            if kind is c.Finished or kind is c.Snapshot:  # the most frequent events, which answer nothing else
                continue
            if kind is c.Scored or kind is c.ScoringFailed:
                self._unscored.pop(event.trajectory, None)  # type: ignore[union-attr]
                scored = True
            elif kind in self._heard:
                self._heard[kind](event)
        if scored:
            if self._scoring is not None:
                self._waits.renew(self._scoring, now, self._deadlines.score_s)
            self._settle_scores()

    def forget(self, running: Running) -> None:
        """End all waits for a member that is gone."""
        self._numbers = {seq: entry for seq, entry in self._numbers.items() if entry[1] is not running}
        if running.role == "scorer":
            self._unscored.clear()
            self._scoring = None

    def _add(self, running: Running, seq: int, what: str, timeout_s: float, now: float) -> None:
        number = self._waits.add(
            what, now, timeout_s, None, lambda _: None, lambda error: self._down(running, error), running
        )
        self._numbers[seq] = (number, running)

    def _answered(self, event: c.Event) -> None:
        answers: int | None = event.answers  # type: ignore[union-attr]
        if answers is not None:
            self._end(answers)

    def _published(self, event: c.Event) -> None:
        self._answered(event)
        if self._publishing not in self._numbers:
            self._publishing = None

    def _end(self, seq: int) -> None:
        entry = self._numbers.pop(seq, None)
        if entry is not None:
            self._waits.settle(entry[0])

    def _settle_scores(self) -> None:
        if not self._unscored and self._scoring is not None:
            self._waits.settle(self._scoring)
            self._scoring = None
