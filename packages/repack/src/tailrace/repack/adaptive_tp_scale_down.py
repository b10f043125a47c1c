"""Axis provisioning: adaptive tensor parallelism and scale-down in one (RollPacker, sections 4.2 and 4.4).

a round begins ──► resize, if its kind wants another size and nothing is lent
milestone      ──► lend half of the cells, if the rest holds what is in flight
a round ends   ──► return all; the resize waits until `FleetView.lent` is empty
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tailrace.contracts import FleetAction, FleetView
from tailrace.repack.adaptive_tp import AdaptiveTP
from tailrace.repack.scale_down import ScaleDown


@dataclass(frozen=True, slots=True)
class AdaptiveTPScaleDown(AdaptiveTP):
    """Chooses the devices of a replica as a round begins, as `AdaptiveTP` does, and lends devices in it, as `ScaleDown` does.

    The sizes decide what can be lent: cells of the trainer on the devices of one replica are lent together or not at all. So
    two replicas of one device, each with a cell, lend one; one replica of both devices lends none. Resizes and loans never
    overlap: what is lent returns first.

    Args:
        max_tokens: most tokens of a response.
        first, last, every: milestones as shares of the samples that the round keeps: `first`, `first` + `every`, ... `last`.

    Raises:
        LoadError: an option is out of its range; see `AdaptiveTP` for its own.
    """

    max_tokens: int = 16_384
    first: float = 0.2
    last: float = 0.5
    every: float = 0.05

    def __post_init__(self) -> None:
        AdaptiveTP.__post_init__(self)
        self._scale_down()

    @property
    def lends(self) -> bool:
        """Yes: it lends devices to cells of the trainer, which must share them."""
        return True

    @property
    def milestones(self) -> Sequence[float]:
        """The shares at which it looks whether to lend."""
        return self._scale_down().milestones

    def plan(self, view: FleetView) -> Sequence[FleetAction]:
        """Start the replicas; resize them, lend half of the devices, or take them back."""
        sized = () if view.lent else AdaptiveTP.plan(self, view)
        return sized or self._scale_down().plan(view)

    def _scale_down(self) -> ScaleDown:
        return ScaleDown(self.count, self.max_tokens, self.first, self.last, self.every)
