"""Batching in rounds, each of which is one batch (RollPacker, section 3): what policies may have beside the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tailrace.contracts.policies import AdmissionGate, BatchingPolicy, BatchingSource, ProvisioningPolicy
from tailrace.contracts.round_views import RoundView


@runtime_checkable
class LaunchesRounds(BatchingSource, Protocol):
    """What a `BatchingSource` may also have: its groups come in rounds, and what a round keeps is one batch.

    Every `Launch` has the number of its round; numbers rise by one. A round is open until nothing of it is awaited; then it is
    closed, and the next launch belongs to the next round. Admission must know rounds too (`AdmitsRounds`).
    """

    @property
    def round(self) -> RoundView | None:
        """The open round; None if none of its groups was launched yet. The source does not count `generated`."""
        ...

    @property
    def pending(self) -> int:
        """Groups that `next` will answer without another group's end in between: those of the open round, not launched yet."""
        ...

    def completed(self, group: int) -> None:
        """Note that a group is complete and kept. The controller calls it after `keeps`."""
        ...

    def surplus(self) -> Sequence[int]:
        """Launched, incomplete groups that their round does not need. The controller ends them at once, as surplus."""
        ...


@runtime_checkable
class AdmitsRounds(AdmissionGate, Protocol):
    """What an `AdmissionGate` may also have: batches of different sizes, as batching in rounds makes them."""

    def rounds(self, sizes: Sequence[int], closed: int) -> None:
        """Set the batches from now on: the open groups, in order of their numbers, form batches of these sizes.

        The controller calls it before it asks anything else, whenever they have changed. The groups of a batch that is not
        closed may not have started yet, and more of them may start than the batch will keep; the others are dropped first.

        Args:
            sizes: groups of each batch that was not consumed, oldest first.
            closed: how many of the first batches have all their groups.
        """
        ...


@runtime_checkable
class WatchesRounds(ProvisioningPolicy, Protocol):
    """What a `ProvisioningPolicy` may also have: its view then has the rounds, and it is asked in the middle of them too."""

    @property
    def milestones(self) -> Sequence[float]:
        """Shares of the samples that a round keeps, from 0 to 1. `plan` is asked when so many have finished generating.

        It is also asked when a round begins and ends. The answer is always the same.
        """
        ...


@runtime_checkable
class LendsDevices(WatchesRounds, Protocol):
    """What a `ProvisioningPolicy` also has if it lends replicas' devices: then cells of the trainer must share them."""

    @property
    def lends(self) -> bool:
        """Whether it may ever answer a `LendReplica`."""
        ...


@runtime_checkable
class DrawsAgain(BatchingPolicy, Protocol):
    """What a `BatchingPolicy` also has if its launches may have a `draw`: then the engine must keep seeds."""

    @property
    def draws(self) -> bool:
        """Whether any launch has a `draw`."""
        ...
