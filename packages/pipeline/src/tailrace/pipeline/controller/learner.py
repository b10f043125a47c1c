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
    """

    up: bool = False
    version: int = 0
    step: int = 0
    published: int = -1
    publishing: int = -1
    durable: int = -1
    stepping: int | None = None
    batches: dict[int, int] = field(default_factory=lambda: {0: 0})
    consumed_staleness: dict[int, dict[int, int]] = field(default_factory=dict)
    staleness_at_completion: dict[int, int] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Whether a step may start."""
        return self.up and self.stepping is None

    def stepped(self, version: int) -> None:
        """A step is done."""
        self.version, self.stepping = version, None
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
        self.stepping = None
        self.consumed_staleness = {v: counts for v, counts in self.consumed_staleness.items() if v <= durable}
        self.step = self.batches[durable]
        highest = max(self.published, self.publishing)
        self.version = durable if highest <= durable else highest + 1
        self.batches = {version: step for version, step in self.batches.items() if version <= durable}
        self.batches[self.version] = self.step
