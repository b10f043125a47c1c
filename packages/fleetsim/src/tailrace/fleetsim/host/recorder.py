"""Measurements of a simulated run, from the end of its warm-up to its last step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tailrace.fleetsim.engine import ModelledEngine
from tailrace.fleetsim.host.tokens import Tokens


@dataclass(slots=True)
class Totals:
    """Sums over all members, since the run began."""

    at_s: float = 0.0
    replica_busy_s: float = 0.0
    decode_s: float = 0.0
    prefill_s: float = 0.0
    pulling_s: float = 0.0
    kv_share_s: float = 0.0
    running_s: float = 0.0
    generated_tokens: float = 0.0
    preemptions: int = 0
    trainer_busy_s: float = 0.0
    publishing_s: float = 0.0
    preparing_s: float = 0.0
    pulls: int = 0
    latency_sum_s: float = 0.0
    latencies: int = 0
    reprefilled_tokens: int = 0

    def add_engine(self, engine: ModelledEngine) -> None:
        """Add what a replica's engine has done."""
        done = engine.totals()
        self.replica_busy_s += done.prefill_s + done.decode_s
        self.decode_s += done.decode_s
        self.prefill_s += done.prefill_s
        self.kv_share_s += engine.kv_share_s
        self.running_s += done.running_s
        self.generated_tokens += done.tokens
        self.preemptions += engine.preemptions


class Metered(Protocol):
    """A member that counts its work."""

    def add_to(self, totals: Totals) -> None:
        """Add its totals so far."""
        ...


@dataclass(slots=True)
class BatchRow:
    """One batch: when the trainer held its version, tokens with prompts, trajectories by staleness, and their names."""

    version: int
    at_s: float
    tokens: int
    lags: dict[int, int] = field(default_factory=dict)
    names: Sequence[str] = ()


class Recorder:
    """Rows of a simulation, and its totals where measuring begins and ends.

    Args:
        warm_up: batches that are not measured.
        batches: the batches to record.
    """

    def __init__(self, tokens: Tokens, meters: Sequence[Metered], warm_up: int, batches: int) -> None:
        self._tokens, self._meters, self._warm_up, self._batches = tokens, meters, warm_up, batches
        self.rows: list[BatchRow] = []
        self.begin: Totals | None = Totals() if warm_up == 0 else None
        self.end = Totals()

    def stepped(self, version: int, batch: list[str], lags: dict[int, int], now: float) -> None:
        """A batch was trained on."""
        tokens, _ = self._tokens.load(batch)
        self.rows.append(BatchRow(version, now, tokens, lags, batch))
        if self.begin is None and len(self.rows) >= self._warm_up:
            self.begin = self.totals(now)
        if len(self.rows) == self._batches:
            self.end = self.totals(now)

    def rolled_back(self, version: int) -> None:
        """Forget batches after a version, from which the trainer continues."""
        self.rows[:] = [row for row in self.rows if row.version <= version]
        if len(self.rows) < self._warm_up:
            self.begin = None

    def close(self, now: float) -> None:
        """The run is over; one that failed is measured up to its failure."""
        if self.end.at_s == 0.0:
            self.end = self.totals(now)

    def measured(self) -> list[BatchRow]:
        """Rows after the warm-up."""
        return self.rows[self._warm_up :]

    def totals(self, now: float) -> Totals:
        """Sums up to now."""
        totals = Totals(at_s=now)
        for meter in self._meters:
            meter.add_to(totals)
        tokens = self._tokens
        totals.latency_sum_s, totals.latencies = tokens.latency_sum_s, tokens.latencies
        totals.reprefilled_tokens = tokens.reprefilled_tokens
        return totals
