"""A rollout engine that measures another one. It passes every call on to the engine that it wraps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tailrace.contracts import Delta, Engine, EngineStats, Request
from tailrace.fleetsim.profile.samples import ClockReading, EngineRound, Look, ReplicaSamples

LOOKS = 200


class MeasuredEngine:
    """An engine (`tailrace.contracts.Engine`) around another one.

    Args:
        engine: the wrapped engine.
        samples: takes the measurements.
    """

    def __init__(self, engine: Engine, samples: ReplicaSamples) -> None:
        self._engine, self.samples = engine, samples
        self._tokens: dict[str, int] = {}  # tokens of each trajectory in flight, prompt included
        self._fresh = self._fresh_tokens = 0
        self._since: ClockReading | None = None

    def submit(self, requests: Sequence[Request]) -> None:
        """Pass the call on, and count the tokens to prefill."""
        if self._since is None:
            self._since = ClockReading.now()
        self._engine.submit(requests)
        for request in requests:
            tokens = len(request.prompt) + len(request.kept)
            self._tokens[request.id] = tokens
            self._fresh += 1
            self._fresh_tokens += tokens

    def step(self) -> Sequence[Delta]:
        """Pass the call on, and note the round."""
        began = ClockReading.now()
        deltas = self._engine.step()
        ended = ClockReading.now()
        tokens = self._tokens
        in_flight, running, kv_tokens = len(tokens), 0, 0
        finished = []
        for delta in deltas:
            if delta.id not in tokens:
                continue
            tokens[delta.id] += len(delta.tokens)
            if delta.tokens:
                running += 1
                kv_tokens += tokens[delta.id]
            if delta.finish is not None:
                del tokens[delta.id]
                finished.append(delta.id)
        self.samples.finished += ((id_, ended.wall_s, not tokens) for id_ in finished)
        self.samples.rounds.append(
            EngineRound(
                self._since or began,
                began,
                ended,
                running,
                kv_tokens,
                self._fresh,
                self._fresh_tokens,
                max(0, in_flight - running),
            )
        )
        self._fresh = self._fresh_tokens = 0
        self._since = ended if tokens else None
        return deltas

    def abort(self, ids: Sequence[str]) -> Sequence[Delta]:
        """Pass on."""
        deltas = self._engine.abort(ids)
        for id_ in ids:
            self._tokens.pop(id_, None)
        if not self._tokens:
            self._since = None
        return deltas

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Pass on."""
        self._engine.load_weights(weights)
        self._since = None

    def stats(self) -> EngineStats:
        """Pass on."""
        stats = self._engine.stats()
        self.samples.kv_capacity_tokens = stats.kv_capacity_tokens
        if self._tokens and not stats.waiting and len(self.samples.looks) < LOOKS:
            self.samples.looks.append(Look(stats.kv * stats.kv_capacity_tokens, tuple(self._tokens.values())))
        return stats

    def close(self) -> None:
        """Pass on."""
        self._engine.close()
