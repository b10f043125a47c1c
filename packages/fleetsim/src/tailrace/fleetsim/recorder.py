"""What a simulated run measures about itself, from the end of its warm-up to its last step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace.fleetsim.simulator import Simulation


@dataclass(slots=True)
class Totals:
    """Sums over all members, since the run began."""

    at_s: float = 0.0
    replica_busy_s: float = 0.0
    decode_s: float = 0.0
    prefill_s: float = 0.0
    pulling_s: float = 0.0
    kv_share_s: float = 0.0
    generated_tokens: float = 0.0
    preemptions: int = 0
    trainer_busy_s: float = 0.0
    publishing_s: float = 0.0
    preparing_s: float = 0.0
    moves: int = 0
    pulls: int = 0
    latency_sum_s: float = 0.0
    latencies: int = 0
    reprefilled_tokens: int = 0


@dataclass(slots=True)
class Row:
    """One batch: when the trainer held its version, tokens with prompts, trajectories by staleness."""

    version: int
    at_s: float
    tokens: int
    lags: dict[int, int] = field(default_factory=dict)


class Recorder:
    """Rows of a simulation, and its totals where measuring begins and ends."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.rows: list[Row] = []
        self.begin: Totals | None = Totals() if simulation.fleet.warm_up == 0 else None
        self.end = Totals()

    def stepped(self, version: int, batch: list[str], lags: dict[int, int]) -> None:
        """A batch was trained on."""
        simulation = self._simulation
        tokens, _ = simulation.tokens.load(batch)
        self.rows.append(Row(version, simulation.now, tokens, lags))
        if self.begin is None and len(self.rows) >= simulation.fleet.warm_up:
            self.begin = self._totals()
        if len(self.rows) == (simulation.fleet.batches or simulation.fleet.spec.steps):
            self.end = self._totals()

    def close(self) -> None:
        """The run is over; one that failed is measured up to its failure."""
        if self.end.at_s == 0.0:
            self.end = self._totals()

    def measured(self) -> list[Row]:
        """Rows after the warm-up."""
        return self.rows[self._simulation.fleet.warm_up :]

    def _totals(self) -> Totals:
        simulation, now = self._simulation, self._simulation.now
        totals = Totals(at_s=now)
        for replica in simulation.replicas.values():
            engine = replica.engine
            engine.advance(now)
            totals.replica_busy_s += engine.busy_s
            totals.decode_s += engine.decode_s
            totals.prefill_s += engine.prefill_s
            totals.kv_share_s += engine.kv_share_s
            totals.generated_tokens += engine.tokens
            totals.preemptions += engine.preemptions
        trainer = simulation.trainer
        trainer.account()
        totals.trainer_busy_s, totals.publishing_s = trainer.busy_s, trainer.publishing_s
        totals.preparing_s = trainer.preparing_s
        totals.pulling_s, totals.pulls = simulation.relays.waited_s, simulation.relays.pulls
        totals.moves = simulation.controller.moves
        tokens = simulation.tokens
        totals.latency_sum_s, totals.latencies = tokens.latency_sum_s, tokens.latencies
        totals.reprefilled_tokens = tokens.reprefilled_tokens
        return totals
