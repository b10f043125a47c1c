"""The learner: one owner for what is known of the trainer.

Versions only grow. A trainer that fell back to a checkpoint while replicas already serve newer weights does not reuse their
numbers: its weights are published under a new one, so that a version names one set of weights for ever (RR-3).
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Learner:
    """The trainer's state.

    `batches` maps each version that training made to its number of batches consumed, so that a fall-back knows its step.
    Staleness counts trajectories (LAM-8): at completion by staleness, at consumption by version that was made, then by
    staleness, so that a fall-back forgets the batches that it undoes.

    Of the batch that is being streamed, `accumulated` lists the groups that were given so far, in so many `parts`;
    `accumulating` is its version while the trainer works on one of them.
    """

    up: bool = False
    version: int = 0
    step: int = 0
    published: int = -1
    publishing: int = -1
    durable: int = -1
    stepping: int | None = None
    accumulating: int | None = None
    accumulated: list[int] = field(default_factory=list)
    parts: int = 0
    batches: dict[int, int] = field(default_factory=lambda: {0: 0})
    consumed_staleness: dict[int, dict[int, int]] = field(default_factory=dict)
    staleness_at_completion: dict[int, int] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Whether a step may start."""
        return self.up and self.making is None

    @property
    def making(self) -> int | None:
        """The version that the trainer works on, with a whole batch or a part of one; None if it was given nothing."""
        return self.accumulating if self.stepping is None else self.stepping

    def consumed(self, version: int, staleness: dict[int, int]) -> None:
        """Trajectories of so much staleness are trained on for a version."""
        counts = self.consumed_staleness.setdefault(version, {})
        for lag, count in staleness.items():
            counts[lag] = counts.get(lag, 0) + count

    def went_down(self) -> None:
        """The trainer is gone. What it was given stays consumed until it falls back."""
        self.up, self.stepping, self.accumulating = False, None, None

    def stepped(self, version: int) -> None:
        """A step is done."""
        self.version, self.stepping = version, None
        self.accumulated, self.parts = [], 0
        self.step += 1
        self.batches[version] = self.step

    @property
    def staleness_at_consumption(self) -> dict[int, int]:
        """Trajectories that were trained on, by staleness."""
        counts: dict[int, int] = {}
        for batch in self.consumed_staleness.values():
            for lag, count in batch.items():
                counts[lag] = counts.get(lag, 0) + count
        return counts

    def fall_back(self, durable: int) -> None:
        """The trainer holds the weights of a checkpoint again."""
        self.stepping, self.accumulating, self.accumulated, self.parts = None, None, [], 0
        self.consumed_staleness = {v: counts for v, counts in self.consumed_staleness.items() if v <= durable}
        self.step = self.batches[durable]
        highest = max(self.published, self.publishing)
        self.version = durable if highest <= durable else highest + 1
        self.batches = {version: step for version, step in self.batches.items() if version <= durable}
        self.batches[self.version] = self.step
