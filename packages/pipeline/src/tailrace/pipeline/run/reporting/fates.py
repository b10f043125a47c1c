"""What became of every prompt and of every training trajectory, and how long each was. Pure.

admitted prompts = trained on + filtered (by reason) + failed            and nothing is lost

offered   every training trajectory that finished, whatever became of its group
unfinished  those that were aborted before they ended
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tailrace import contracts as c
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.controller.ledger import GroupPhase, Phase

NO_SIGNAL, SURPLUS, EXPIRED, FAILED = "no signal", "surplus", "expired", "failed"


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts, that is groups, by what became of them.

    Args:
        filtered: by reason.
        open: neither trained on nor dropped yet; 0 once the run has finished.
    """

    admitted: int
    trained: int
    filtered: dict[str, int]
    failed: int
    open: int = 0

    @property
    def lost(self) -> int:
        """Admitted and nowhere to be found; anything but 0 is a fault of Tailrace."""
        return self.admitted - self.trained - sum(self.filtered.values()) - self.failed - self.open

    def __str__(self) -> str:
        """The sum, for a person."""
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.filtered.items()))
        parts = [f"{self.trained:,} trained on", f"{sum(self.filtered.values()):,} filtered"]
        parts[1] += f" ({reasons})" if reasons else ""
        parts.append(f"{self.failed:,} failed")
        parts += [f"{self.open:,} still open"] if self.open else []
        return f"{self.admitted:,} admitted = {' + '.join(parts)}; {self.lost:,} lost"


def prompts(controller: Controller) -> Prompts:
    """Count a controller's prompts."""
    counts = controller.ledger.counts
    still = sum(group.phase is not GroupPhase.TRAINED for group in controller.ledger.groups.values())
    return Prompts(counts.admitted, counts.trained, dict(sorted(counts.filtered_because.items())), counts.failed, still)


@dataclass(slots=True)
class Fates:
    """Observes a replay. Response tokens by trajectory.

    Args:
        finished: of those that ended by themselves.
        kept: of those that were interrupted, as far as they were when that was last reported.
        dropped: why those were dropped that were not, or not alone, trained on.
    """

    finished: dict[str, int] = field(default_factory=dict)
    kept: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    _scored: set[str] = field(default_factory=set)
    _filtered: dict[str, int] = field(default_factory=dict)

    def observe(self, event: c.Event, commands: Sequence[c.Command], controller: Controller) -> None:
        """One event was handled."""
        match event:
            case c.Finished(trajectory=name, tokens=tokens) if _trains(name):
                self.finished[name] = tokens
            case c.Interrupted(trajectory=name, tokens_kept=tokens) if _trains(name):
                self.kept[name] = tokens
            case c.Scored(trajectory=name):
                self._scored.add(name)
            case c.Resumed(partial=partial):
                self._resumed(partial, controller)
            case _:
                pass
        aborts = [command.trajectories for command in commands if isinstance(command, c.Abort)]
        if aborts:
            self._aborted(event, aborts, controller)

    def lengths(self, why: str) -> list[int]:
        """Response tokens of the trajectories that finished and were dropped for a reason."""
        return [self.finished[name] for name, reason in self.dropped.items() if reason == why and name in self.finished]

    @property
    def unfinished(self) -> list[int | None]:
        """Trajectories that were aborted before they ended: tokens so far, None where nobody reported any."""
        return [self.kept.get(name) for name in self.dropped if name not in self.finished]

    def _aborted(self, event: c.Event, aborts: Iterable[tuple[str, ...]], controller: Controller) -> None:
        """Tell dropped groups apart by the reasons that the ledger counted during this event."""
        because = controller.ledger.counts.filtered_because
        left = {reason: count - self._filtered.get(reason, 0) for reason, count in because.items()}
        left = {reason: count for reason, count in left.items() if count > 0}
        self._filtered = dict(because)
        scored = _group(event.trajectory) if isinstance(event, c.Scored | c.ScoringFailed) else None
        for names in aborts:
            training = [name for name in names if _trains(name)]
            if not training:
                continue
            group = _group(training[0])
            if group in controller.ledger.groups:  # the group goes on: these are its surplus samples
                reason = SURPLUS
            elif group == scored and isinstance(event, c.ScoringFailed):
                reason = FAILED
            elif group == scored:
                reason = NO_SIGNAL if training[0] in self._scored else SURPLUS
            else:
                reason = self._older(training, left)
            self.dropped.update(dict.fromkeys(training, reason))

    def _resumed(self, partial: Mapping[str, tuple[int, int]], controller: Controller) -> None:
        """What the stores did not keep is generated again."""
        self.kept.update({name: tokens for name, (_, tokens) in partial.items() if _trains(name)})
        for name in list(self.finished):
            state = controller.ledger.get(name)
            if state is not None and state.phase in (Phase.PENDING, Phase.RUNNING):
                del self.finished[name]

    def _older(self, names: list[str], left: dict[str, int]) -> str:
        """Why a group was dropped that this event did not complete."""
        open_ = [reason for reason in (SURPLUS, EXPIRED) if left.get(reason)]
        if len(open_) == 1:
            return open_[0]
        return EXPIRED if all(name in self.finished for name in names) else SURPLUS


def _trains(name: str) -> bool:
    """Whether a trajectory is for training: those are called GROUP.SAMPLE, the others otherwise."""
    return name.replace(".", "", 1).isdigit()


def _group(name: str) -> int:
    group = name.partition(".")[0]
    return int(group) if group.isdigit() else -1
