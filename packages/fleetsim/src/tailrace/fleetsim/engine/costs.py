"""The protocols of the cost models that an engine uses."""

from __future__ import annotations

from typing import Protocol


class DecodeTime(Protocol):
    """How long a decode step takes: `fixed_s(running) + per_token_s * tokens in the KV cache`."""

    @property
    def per_token_s(self) -> float:
        """Seconds that a step takes for each token in the KV cache."""

    @property
    def kv_capacity_tokens(self) -> int:
        """Tokens that fit into the KV cache."""

    def fixed_s(self, running: int, /) -> float:
        """Seconds of a step of `running` trajectories that do not depend on the KV cache; above 0."""


class PrefillTime(Protocol):
    """How long a prompt takes before its first decode step."""

    def seconds(self, tokens: int, cached: int = 0, /) -> float:
        """Seconds to fill the cache with a context of `tokens`, of which `cached` are there already."""
