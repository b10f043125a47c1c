"""Measurements of a simulated run that only its models can take: time of devices, tokens, latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tailrace.controller.view import RunView
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
    """What the models alone measure, at each version that training made. Which of them stand is the controller's to say."""

    def __init__(self, tokens: Tokens, meters: Sequence[Metered]) -> None:
        self._tokens, self._meters = tokens, meters
        self._made: dict[int, BatchRow] = {}
        self._then: dict[int, Totals] = {}

    def stepped(self, version: int, batch: list[str], lags: dict[int, int], now: float) -> None:
        """A batch was trained on."""
        tokens, _ = self._tokens.load(batch)
        self._made[version], self._then[version] = BatchRow(version, now, tokens, lags, batch), self.totals(now)

    def rows(self, run: RunView) -> list[BatchRow]:
        """The batches behind the trainer's weights, in order."""
        return [self._made[version] for version in sorted(self._made) if run.made(version)]

    def then(self, row: BatchRow) -> Totals:
        """The sums at the end of a batch."""
        return self._then[row.version]

    def totals(self, now: float) -> Totals:
        """Sums up to now."""
        totals = Totals(at_s=now)
        for meter in self._meters:
            meter.add_to(totals)
        tokens = self._tokens
        totals.latency_sum_s, totals.latencies = tokens.latency_sum_s, tokens.latencies
        totals.reprefilled_tokens = tokens.reprefilled_tokens
        return totals
