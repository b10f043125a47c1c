"""Deadlines of commands. If no event with a command's number arrives in time, its member counts as down.

A `Route` has no deadline here, since the length of a response is unknown. A replica that stands still reports it itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from tailrace import contracts as c
from tailrace.runtime.errors import DeadlineError
from tailrace.runtime.executor.deployment import RANKER, SCORER, TRAINER, Deadlines
from tailrace.runtime.executor.running import Running
from tailrace.runtime.executor.waits import Waits

Down = Callable[[Running, BaseException], None]
ALIVE_S = 60.0  # a trainer that goes on has ended a micro-batch since then


@dataclass(slots=True)
class _Training:
    """What is known of a step, or a part of one, that the trainer was given.

    Args:
        since_s: when.
        progress: micro-batches of the trainer when it was last heard of; None if it was not.
        moved_s: when more of them were told; None if none ended since.
        share: of its micro-batches, as last told at `share_s`; 0 if the trainer cannot say.
    """

    since_s: float
    progress: int | None = None
    moved_s: float | None = None
    share: float = 0.0
    share_s: float = 0.0

    def heard(self, event: c.Activity, now: float) -> None:
        if self.progress is not None and event.progress > self.progress:
            self.moved_s = now
        self.progress = event.progress
        if event.share > self.share:
            self.share, self.share_s, self.moved_s = event.share, now, now

    def late(self, error: BaseException, limit_s: float, longest_s: float, now: float) -> DeadlineError:
        """What to say if it was not done by its deadline: whether the deadline is at fault, and its key."""
        known = f"the deadline is {limit_s:g} s (deadlines.step_s)"
        if self.moved_s is None:
            said = f"no micro-batch was seen to end; {known}"
            if longest_s:
                said += f", the longest step so far took {longest_s:.0f} s"
        elif now - self.moved_s > max(ALIVE_S, limit_s / 4):
            said = f"nothing went on for the last {now - self.moved_s:.0f} s; {known}"
        elif self.share:
            needed_s = (self.share_s - self.since_s) / self.share
            said = f"it went on all the while, {self.share:.0%} were done: this step needs about {needed_s:.0f} s, "
            said += f"{known}: raise it"
        else:
            said = f"it went on all the while: this step needs more than {now - self.since_s:.0f} s, {known}: raise it"
        return DeadlineError(f"{error}; {said}")


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
        self._publishing = 0  # number of the newest command to publish
        self._saves: dict[int, None] = {}  # numbers of checkpoints: one waits while those before it are written
        self._offloads: dict[int, None] = {}  # numbers of commands to offload: they come behind checkpoints
        self._scores = Outcomes(waits, "trajectories to be scored", deadlines.score_s, down)
        self._lengths = Outcomes(waits, "lengths to be predicted", deadlines.predict_s, down, newest_first=True)
        self._of_role = {SCORER: self._scores, RANKER: self._lengths}
        self._training: dict[int, _Training] = {}  # by the command's number
        self._longest_s, self._now = 0.0, 0.0
        self._calls: dict[Running, Outcomes] = {}  # of each environment
        self._called: dict[str, int] = {}  # number of the newest call of a trajectory
        self._heard: dict[type, Callable[[c.Event], None]] = dict.fromkeys(
            (
                c.Stepped,
                c.Accumulated,
                c.Offloaded,
                c.Published,
                c.Durable,
                c.Pulled,
                c.PullFailed,
                c.Lent,
                c.Returned,
                c.Discarded,
                c.Measured,
            ),
            self._answered,
        )

    def expect(self, running: Running, command: c.Command, now: float) -> None:
        """Wait for the answer to a command that goes to a member."""
        limits = self._deadlines
        match command:
            case c.Step(version=version):
                self._train(running, command.seq, f"{running} to train version {version}", now)
            case c.Accumulate(version=version, cell=None):
                self._train(running, command.seq, f"{running} to train a part of version {version}", now)
            case c.Accumulate(version=version, cell=cell):
                self._train(
                    running, command.seq, f"cell {cell} of {running} to add gradients of version {version}", now
                )
            case c.Offload(cell=cell):
                what, behind_s = f"cell {cell} of {running} to leave its devices", limits.save_s if self._saves else 0.0
                self._add(running, command.seq, what, limits.hand_over_s + limits.publish_s + behind_s, now)
                self._offloads[command.seq] = None
            case c.Publish(version=version, relays=relays):  # if sealed, its deadline is that of its checkpoint too
                self._end(self._publishing)  # a newer version replaces one that is not published yet
                self._publishing = command.seq
                if relays:  # without them nothing can be published
                    self._add(running, command.seq, f"version {version} to be published", limits.publish_s, now)
            case c.Checkpoint(version=version):
                what = f"more of the checkpoint of version {version} to be written"
                self._add(running, command.seq, what, limits.save_s, now)
                self._saves[command.seq] = None
            case c.Pull(version=version):
                self._add(running, command.seq, f"{running} to pull version {version}", limits.pull_s, now)
            case c.Lend():
                self._add(running, command.seq, f"{running} to leave its devices", limits.hand_over_s, now)
            case c.Return():
                self._add(running, command.seq, f"{running} to take its devices back", limits.hand_over_s, now)
            case c.Abort():
                self._add(running, command.seq, "the store to delete dropped trajectories", limits.score_s, now)
            case c.Measure(prompts=prompts):
                what = f"the data role to measure {len(prompts)} prompts"
                self._add(running, command.seq, what, limits.score_s, now)
            case _:
                pass

    def scoring(self, scorer: Running, names: Sequence[str], now: float) -> None:
        """Wait for the scores of trajectories. The deadline counts from the scorer's last outcome."""
        self._scores.expect(scorer, names, now)

    def predicting(self, ranker: Running, prompts: Sequence[int], now: float) -> None:
        """Wait for predictions for prompts. The deadline counts from the ranker's last answer."""
        self._lengths.expect(ranker, prompts, now)

    def calling(self, environment: Running, names: Sequence[str], seq: int, now: float) -> None:
        """Wait for an environment's answers to the last turns of trajectories. The deadline counts from its last answer.

        Args:
            seq: of the call: an answer to one before it, which came late or twice, ends no wait.
        """
        self._called.update(dict.fromkeys(names, seq))
        if environment not in self._calls:
            what, limit_s = f"{environment} to answer turns", self._deadlines.call_s
            self._calls[environment] = Outcomes(self._waits, what, limit_s, self._down)
        self._calls[environment].expect(environment, names, now)

    def closed(self, environment: Running, names: Sequence[str]) -> None:
        """Stop waiting for an environment's answers to trajectories whose sessions end."""
        if environment in self._calls:
            self._calls[environment].dropped(names)
        for name in names:
            self._called.pop(name, None)

    def dropped(self, names: Sequence[str]) -> None:
        """Stop waiting for the scores of trajectories."""
        self._scores.dropped(names)

    def heard(self, events: Sequence[c.Event], now: float) -> None:
        """End or renew waits after events of members."""
        self._now = now
        scored: list[str] = []
        predicted: list[int] = []
        turned: list[str] = []
        for event in events:
            kind = type(event)
            if kind is c.Finished or kind is c.Snapshot:  # the most frequent events, which answer nothing else
                continue
            if kind is c.Scored or kind is c.ScoringFailed:
                scored.append(event.trajectory)  # type: ignore[union-attr]
            elif kind is c.Predicted or kind is c.PredictionFailed:
                predicted.append(event.prompt)  # type: ignore[union-attr]
            elif kind is c.Turned or kind is c.CallFailed:
                if event.answers is None or event.answers >= self._called.get(event.trajectory, 0):  # type: ignore[union-attr]
                    turned.append(event.trajectory)  # type: ignore[union-attr]
            elif kind is c.Activity:
                if event.role == TRAINER and self._training:  # type: ignore[union-attr]
                    self._training[min(self._training)].heard(event, now)  # type: ignore[arg-type]
            elif kind is c.Saving:
                self._goes_on(event)  # type: ignore[arg-type]
            elif kind in self._heard:
                self._heard[kind](event)
        if scored:
            self._scores.came(scored, now)
        if predicted:
            self._lengths.came(predicted, now)
        if turned:
            for calls in self._calls.values():
                calls.came_here(turned, now)

    def forget(self, running: Running) -> None:
        """End all waits for a member that is gone."""
        self._numbers = {seq: entry for seq, entry in self._numbers.items() if entry[1] is not running}
        self._training = {seq: one for seq, one in self._training.items() if seq in self._numbers}
        self._saves = {seq: None for seq in self._saves if seq in self._numbers}
        self._offloads = {seq: None for seq in self._offloads if seq in self._numbers}
        if running.role in self._of_role:
            self._of_role[running.role].clear()
        self._calls.pop(running, None)

    def _add(self, running: Running, seq: int, what: str, timeout_s: float, now: float) -> None:
        number = self._waits.add(
            what, now, timeout_s, None, lambda _: None, lambda error: self._down(running, error), running
        )
        self._numbers[seq] = (number, running)

    def _train(self, running: Running, seq: int, what: str, now: float) -> None:
        """Wait for a step or a part of one, and say of one that is late whether it went on."""
        training, limit_s = _Training(now), self._deadlines.step_s

        def late(error: BaseException) -> None:
            self._down(running, training.late(error, limit_s, self._longest_s, now + limit_s))

        self._numbers[seq] = self._waits.add(what, now, limit_s, None, lambda _: None, late, running), running
        self._training[seq] = training

    def _goes_on(self, event: c.Saving) -> None:
        """Bytes of a checkpoint were written."""
        if event.answers in self._saves:
            self._renew_saves()

    def _renew_saves(self) -> None:
        for seq in (*self._saves, *self._offloads):
            self._waits.renew(self._numbers[seq][0], self._now, self._deadlines.save_s)

    def _answered(self, event: c.Event) -> None:
        answers: int | None = event.answers  # type: ignore[union-attr]
        if answers is not None:
            self._end(answers)

    def _end(self, seq: int) -> None:
        training = self._training.pop(seq, None)
        if training is not None:
            self._longest_s = max(self._longest_s, self._now - training.since_s)
        self._offloads.pop(seq, None)
        entry = self._numbers.pop(seq, None)
        if entry is not None:
            self._waits.settle(entry[0])
        if seq in self._saves:
            del self._saves[seq]
            self._renew_saves()


class Outcomes:
    """What a member has not said the outcome of yet: trajectories of a scorer, prompts of a ranker.

    Each outcome begins the deadline anew, since a queue may be long. But one of something that was asked for more than the
    deadline after another that is still open does not: the member has forgotten that one. But a member that answers the newest
    first leaves others open as long as it is slower than it is asked.

    Args:
        waits: the executor's waits.
        what: what is waited for, in words.
        limit_s: seconds from one outcome to the next.
        down: called when there is none in time.
        newest_first: whether the member answers what it was asked last first.
    """

    def __init__(
        self,
        waits: Waits,
        what: str,
        limit_s: float,
        down: Callable[[Running, BaseException], None],
        *,
        newest_first: bool = False,
    ) -> None:
        self._waits, self._what, self._limit_s, self._down = waits, what, limit_s, down
        self._newest_first = newest_first
        self._open: dict[Hashable, float] = {}  # when each was asked for, the oldest first
        self._wait: int | None = None

    def expect(self, member: Running, things: Iterable[Hashable], now: float) -> None:
        """Wait for the outcomes of these too."""
        for thing in things:
            self._open.setdefault(thing, now)
        if self._wait is None and self._open:
            self._wait = self._waits.add(
                self._what,
                now,
                self._limit_s,
                None,
                lambda _: None,
                lambda error: self._down(member, error),
                member,
            )

    def came(self, things: Sequence[Hashable], now: float) -> None:
        """Note outcomes. The deadline begins anew, unless they overtook by more than that what is still open."""
        asked = [self._open.pop(thing) for thing in things if thing in self._open]
        if not self._open:
            self._over()
        elif self._newest_first or max(asked, default=-math.inf) - next(iter(self._open.values())) <= self._limit_s:
            assert self._wait is not None  # something is open
            self._waits.renew(self._wait, now, self._limit_s)

    def came_here(self, things: Iterable[Hashable], now: float) -> None:
        """Note outcomes of which some may be another member's."""
        mine = [thing for thing in things if thing in self._open]
        if mine:
            self.came(mine, now)

    def dropped(self, things: Iterable[Hashable]) -> None:
        """Stop waiting for some."""
        for thing in things:
            self._open.pop(thing, None)
        if not self._open:
            self._over()

    def clear(self) -> None:
        """Forget all, since the member is gone; its waits are forgotten with it."""
        self._open.clear()
        self._wait = None

    def _over(self) -> None:
        if self._wait is not None:
            self._waits.settle(self._wait)
            self._wait = None
