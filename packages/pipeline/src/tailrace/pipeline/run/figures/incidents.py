"""Incidents: what a person must hear of while a run goes on, one line each: deaths, their causes, what follows, recoveries."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType

from tailrace import contracts as c

_WINDOW, _LEAST = 64, 16  # groups that are looked at, and that say anything
_MANY, _FEW = 0.9, 0.5  # shares that are filtered: above the first it is said, below the second it is over
_REWARDS = 512
_ENDED = {
    c.Cause.DIED: "died",
    c.Cause.SILENT: "did not answer",
    c.Cause.BROKE: "broke",
    c.Cause.STILL: "stood still",
    c.Cause.WEIGHTS: "had other weights than were published",
    c.Cause.CHECKPOINT: "could not load its checkpoint",
    c.Cause.MACHINE: "has no machine that it can use",
}
_STRUCK = {
    "kill": "is killed", "hang": "is stopped, and lives on", "stall": "has its engine stopped", "raise": "raises an exception",
}  # fmt: skip
_USUAL = frozenset({c.Finished, c.Scored, c.Snapshot, c.Tick})
"""Most events are of these kinds, and nobody need hear of them."""
_OCCUPIED = "it begins anew once the trainer has left its devices"
_Key = tuple[str, str]


class Incidents:
    """Turns events and commands into lines. It keeps which members are out, and since when."""

    def __init__(self) -> None:
        self._out: dict[_Key, float] = {}
        self._unscored = 0
        self._occupied: set[str] = set()  # replicas that wait for their devices
        self._leaving: set[str] = set()  # replicas that were told to stop

    def lines(
        self,
        now: float,
        events: Sequence[c.Event],
        commands: Sequence[c.Command],
        occupied: Mapping[str, c.Reason] = MappingProxyType({}),
    ) -> list[str]:
        """The lines of one instant.

        Args:
            now: seconds on the run's clock.
            events: the events that reached the controller together.
            commands: its commands.
            occupied: replicas whose restart waits for their devices, as `RunView.occupied` has them.
        """
        lines: list[str] = []
        before, self._occupied = self._occupied, set(occupied)
        down: set[_Key] = set()
        for event in events:
            if type(event) in _USUAL:
                continue
            match event:
                case c.Struck(role=role, id=id_, kind=kind, phase=phase):
                    where = f" in its phase {phase}" if phase else ""
                    lines.append(f"scripted fault: {role} {id_} {_STRUCK.get(kind, kind)}{where}")
                case c.Silent(role=role, id=id_, silent_s=silent_s):
                    lines.append(
                        f"{role} {id_} has not answered for {silent_s:.0f} s"
                        if silent_s
                        else f"{role} {id_} answers again"
                    )
                case c.Down(role=role, id=id_, cause=cause, reason=reason) if cause is not c.Cause.STOPPED:
                    down.add((role, id_))
                    self._out.setdefault((role, id_), now)
                    lines.append(
                        f"{role} {id_} {_ENDED[cause]}: {reason}; {_what_then((role, id_), commands, occupied)}"
                    )
                case c.Up(role=role, id=id_, notes=notes):
                    if (role, id_) in self._out:
                        lines.append(f"{role} {id_} is back after {now - self._out.pop((role, id_)):.1f} s")
                    lines += [f"{role} {id_}: {note}" for note in notes]
                case c.ScoringFailed():
                    lines += self._not_scored(event)
                case c.Attached(epoch=epoch, away_s=away_s):
                    after = f"after {away_s:.1f} s another one (number {epoch}) attached to its members"
                    lines.append(f"the controller died; {after}, which live on")
                case c.Resumed():
                    self._out.clear()
                    self._leaving.clear()
                    lines.append("the run goes on after its driver had ended: every member starts again")
                case _:
                    pass
        for name in self._occupied - before:
            if ("replica", name) not in down and (suspected := occupied[name]).why in c.SUSPICIONS:
                self._out.setdefault(("replica", name), now)
                lines.append(f"replica {name} {_suspected(suspected)}; {_OCCUPIED}")
        return lines + self._by_the_controller(now, down, commands, before - self._occupied)

    def _by_the_controller(
        self, now: float, down: set[_Key], commands: Sequence[c.Command], told: set[str]
    ) -> list[str]:
        """Members that the controller itself took for down, but for replicas of which that is told."""
        lines = []
        for command in commands:
            lines += self._by_plan(command, down)
            if not isinstance(command, c.Restart | c.Stop) or (command.role, command.id) in down:
                continue
            key, reason = (command.role, command.id), command.reason
            member, then = f"{command.role} {command.id}", _what_then((command.role, command.id), commands)
            if reason.why in c.SUSPICIONS:
                if command.role == "replica" and command.id in told:
                    continue
                lines.append(f"{member} {_suspected(reason)}; {then}")
            elif reason.why is c.Why.MACHINE:
                lines.append(f"{member} leaves machine {reason.who}, which is given up; {then}")
            elif reason.why is c.Why.FAILED and key not in self._out:
                # The first member that was missed there has told of the machine.
                lines.append(f"{member} stood on a machine that is gone; {then}")
            elif reason.why is c.Why.STANDBY:
                lines.append(f"{member} gives its machine to {reason.who}, which lost its own; {then}")
            else:
                continue
            self._out.setdefault(key, now)
        return lines

    def _by_plan(self, command: c.Command, down: set[_Key]) -> list[str]:
        """A replica that comes or leaves because provisioning planned it. One that failed and is given up says so elsewhere."""
        match command:
            case c.Start(id="r0", reason=reason) if reason.why is c.Why.ALLOCATED:  # the others say the same
                return [_allocated(reason.numbers)]
            case c.Start(id=name, reason=reason) if reason.why is c.Why.GENERATION_SLOWER:
                return [f"replica {name} is added: {_stages(reason.numbers)}"]
            case c.Stop(id=name, reason=reason) if reason.why is c.Why.TRAINING_SLOWER:
                self._leaving.add(name)
                return [f"replica {name} is removed: {_stages(reason.numbers)}"]
            case c.Stop(role="replica", id=name, reason=reason) if "left" not in reason.numbers:
                told = reason.why in c.SUSPICIONS or ("replica", name) in down or name in self._leaving
                self._leaving.add(name)
                return [] if told else [f"replica {name} is removed, as provisioning planned"]
        return []

    def _not_scored(self, event: c.ScoringFailed) -> list[str]:
        """A line at the first failure, and whenever their number has doubled."""
        self._unscored += 1
        if self._unscored & (self._unscored - 1):
            return []
        often = "" if self._unscored == 1 else f" (failure {self._unscored:,})"
        return [f"trajectory {event.trajectory} could not be scored{often}: {event.reason}"]


def _suspected(reason: c.Reason) -> str:
    """What it is taken for down for."""
    if reason.why is c.Why.STILL:
        return f"stood still for {reason.numbers.get('still_s', 0):.0f} s with work in flight"
    if reason.why is c.Why.DIFFERS:
        return f"had other weights than version {reason.numbers.get('version', 0):.0f} as it was published"
    if reason.why is c.Why.HYBRID:
        return f"shares devices with replica {reason.who}, which is down"
    alone = "did not answer" if reason.why is c.Why.SILENT else f"and all others on machine {reason.who} did not answer"
    return f"{alone} for {reason.numbers.get('silent_s', 0):.0f} s"


def _allocated(predicted: Mapping[str, float]) -> str:
    replicas, devices = predicted.get("replicas", 0.0), predicted.get("devices", 0.0)
    generation_s, training_s = predicted.get("generation_s", 0.0), predicted.get("training_s", 0.0)
    return (
        f"the run starts with {replicas:.0f} replicas of {devices:.0f} devices each: predicted are {generation_s:.1f} s of "
        f"generation and {training_s:.1f} s of training an iteration"
    )


def _stages(seconds: Mapping[str, float]) -> str:
    generation_s, training_s = seconds.get("generation_s", 0.0), seconds.get("training_s", 0.0)
    return f"generation of an iteration took {generation_s:.1f} s, training {training_s:.1f} s"


def _what_then(member: _Key, commands: Sequence[c.Command], occupied: Collection[str] = ()) -> str:
    if member[0] == "replica" and member[1] in occupied:
        return _OCCUPIED
    for command in commands:
        match command:
            case c.Restart(role=role, id=id_, reason=reason, weights=weights) if (role, id_) == member:
                newer = (
                    "" if weights is None else f", with the weights of version {weights.version} if others have them"
                )
                return _restarted(reason) + newer
            case c.Stop(role=role, id=id_, reason=reason) if (role, id_) == member and "left" in reason.numbers:
                return _given_up(role, reason.numbers)
            case c.Fail():
                return "the run cannot go on without it"
            case _:
                pass
    return "it is not restarted, others do its work"


def _given_up(role: str, numbers: Mapping[str, float]) -> str:
    often, left = numbers.get("failures", 0.0), numbers["left"]
    plural = "" if left == 1 else "s"
    does = (
        f"{left:.0f} {role}{plural} {'is' if left == 1 else 'are'} left to do its work"
        if left
        else "nobody does its work"
    )
    return f"it is given up after {often:.0f} failure{'' if often == 1 else 's'} in a row, and {does}"


def _restarted(reason: c.Reason) -> str:
    if reason.why is c.Why.DAMAGED:
        return f"it starts from the checkpoint before version {reason.numbers.get('version', 0):.0f}"
    if reason.why is c.Why.NOT_TAKEN:
        return f"it starts from its checkpoint alone, without the weights of version {reason.numbers.get('version', 0):.0f}"
    numbers = reason.numbers
    if "failures" not in numbers:
        return "it is restarted"
    if numbers["failures"] > numbers.get("allowed", math.inf):
        often = "once" if numbers["failures"] == 1 else f"{numbers['failures']:.0f} times in a row"
        return f"it failed {often} there, so it starts on another machine"
    of = f" of {numbers['allowed']:.0f}" if "allowed" in numbers else ""
    return f"restart {numbers['failures']:.0f}{of}"


# Says when nearly every group is filtered because its rewards are all equal: training then waits, and nothing is broken.
#
# That is the filter of DAPO's dynamic sampling (`filter_equal_rewards`). A model that solves no problem, or every one, gives it
# nothing to keep.


class NoSignal:
    """Follows the groups of a run as they are complete.

    `warning` says what happens and what to do while nearly all are filtered; it is empty otherwise.
    """

    def __init__(self) -> None:
        self.warning = ""
        self._groups: deque[bool] = deque(maxlen=_WINDOW)
        self._rewards: deque[float] = deque(maxlen=_REWARDS)
        self._completed = self._filtered = self._said = 0

    def lines(self, completed: int, filtered: int, rewards: Iterable[float]) -> list[str]:
        """What a person must hear of an instant: once as it begins, again when twice as many are filtered, and when it is over.

        Args:
            completed: groups that were complete so far, filtered ones included.
            filtered: those of them whose rewards were all equal.
            rewards: of the trajectories that were scored in this instant.
        """
        self._rewards.extend(rewards)
        new, lost = completed - self._completed, filtered - self._filtered
        self._completed, self._filtered = completed, filtered
        if new <= 0:  # also where a driver went on from a log
            return []
        self._groups.extend([True] * lost + [False] * (new - lost))
        gone, of = sum(self._groups), len(self._groups)
        if of >= _LEAST and gone > _MANY * of:
            self.warning = said(gone, of, self._rewards, last=True)
            if filtered < 2 * self._said:
                return []
            self._said = filtered
            return [self.warning]
        if self.warning and gone < _FEW * of:
            self.warning, self._said = "", 0
            return [f"groups have a signal again: {of - gone} of the last {of} were kept"]
        return []


def starved(completed: int, filtered: int) -> list[str]:
    """The same of a whole run, which has ended, by its groups; nothing if enough were kept."""
    return [said(filtered, completed, (), last=False)] if completed >= _LEAST and filtered > _MANY * completed else []


def said(filtered: int, of: int, rewards: Iterable[float], *, last: bool) -> str:
    """The warning in one line.

    Args:
        filtered, of: groups.
        rewards: of trajectories, as far as they are known: they tell tasks that are too hard from those that are too easy.
        last: these are the last groups of a run that goes on.
    """
    known = list(rewards)
    mean = f", {sum(known) / len(known):.2g} on average" if known else ""
    waits = "training waits for groups that differ" if last else "training had to wait for groups that differ"
    return (
        f"{filtered:,} of {'the last ' if last else ''}{of:,} groups were filtered, since all rewards of each are equal{mean}: "
        f"{waits}. A task that the model solves sometimes, a longer warm start or more samples to a prompt give more of them; "
        "pipeline.batching.filter_equal_rewards = false trains on all"
    )
