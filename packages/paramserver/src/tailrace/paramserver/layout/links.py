"""What a transfer between two ranks is estimated to cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Rank = str


@dataclass(frozen=True, slots=True)
class LinkCosts:
    """Seconds to move a slice: bytes / bandwidth(sender, receiver) + a constant latency (StaleFlow, Figure 22).

    Both can be measured before training. Only differences between senders change a plan, so one bandwidth for all is
    right where all links are alike.

    Args:
        bandwidth: bytes per second between two ranks that `between` does not name.
        latency_s: constant seconds per slice.
        between: bytes per second for (sender, receiver).

    Raises:
        ValueError: a bandwidth is not above 0, or the latency is below 0.
    """

    bandwidth: float = 12.5e9
    latency_s: float = 10e-6
    between: Mapping[tuple[Rank, Rank], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for pair, value in (("other links", self.bandwidth), *self.between.items()):
            if not 0 < value < float("inf"):
                raise ValueError(f"bandwidth of {pair}: found {value}, expected bytes per second above 0")
        if not 0 <= self.latency_s < float("inf"):
            raise ValueError(f"latency_s: found {self.latency_s}, expected seconds from 0")

    def bytes_per_s(self, sender: Rank, receiver: Rank) -> float:
        """Bandwidth from a sender to a receiver."""
        return self.between.get((sender, receiver), self.bandwidth)

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for two estimates that give the same plans."""
        return (self.bandwidth, self.latency_s, tuple(sorted(self.between.items())))
