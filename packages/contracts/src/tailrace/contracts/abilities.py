"""What a policy may have beside its axis's protocol: whoever has one of these is treated accordingly.

| axis | abilities |
|---|---|
| routing, relocation | `PlansTokens`, `LearnsCosts` |
| admission (its gate) | `StartsBatchwise`, `AdmitsRounds` |
| batching (and its source) | `LooksAhead`, `LaunchesRounds`, `DrawsAgain` |
| training | `AddsGradients`, `FetchesOnce`, `FillsCells` |
| provisioning | `AddsReplicas`, `YieldsDevices`, `WatchesIterations`, `WatchesRounds`, `LendsDevices` |

Rounds are those of RollPacker (section 3): each is one batch. `Tried` marks an option of any policy for fuzzing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from tailrace.contracts.policies import (
    AdmissionGate,
    BatchingPolicy,
    BatchingSource,
    ProvisioningPolicy,
    TrainingPolicy,
)
from tailrace.contracts.views import RoundView


@runtime_checkable
class PlansTokens(Protocol):
    """What a routing or relocation policy may also have, so that views count prompts (`TrajectoryView.tokens`)."""

    @property
    def plans_tokens(self) -> bool:
        """Whether it plans with the tokens of trajectories. A policy always gives the same answer."""
        ...


@runtime_checkable
class LearnsCosts(Protocol):
    """What a routing or relocation policy may also have, to plan with the costs of a decoding step that the run itself fits."""

    def with_costs(self, k1: float, k2: float, k3: float, k4: float) -> Self:
        """The same policy with these coefficients: seconds of a step are k1 x tokens + max(k2, k3 x trajectories) + k4."""
        ...


@runtime_checkable
class LooksAhead(Protocol):
    """What a `BatchingSource` may also have, so that the lengths of its prompts are predicted before they are launched.

    The prompts of any other source are predicted once they are launched.
    """

    def ahead(self, count: int) -> Sequence[int]:
        """At most `count` prompts that it will probably launch next, in this order. Asking changes nothing.

        A prompt that is not launched after all costs a prediction, one that is not named has it later: neither is an error.
        """
        ...


@runtime_checkable
class StartsBatchwise(AdmissionGate, Protocol):
    """What an `AdmissionGate` may also have: the prompts of a batch and the version that generates it do not depend on time.

    Its `room` lets the controller launch a batch only when the one before has started whole. The controller in turn has no
    optimizer step end a batch while a launched group may start but has not: the version that the step makes would be too new
    for it.
    """

    @property
    def batchwise(self) -> bool:
        """Whether it does so; always the same."""
        ...


@runtime_checkable
class AddsReplicas(ProvisioningPolicy, Protocol):
    """What a `ProvisioningPolicy` must also have if its replicas may use more devices than those of the start.

    Before a run starts, it is checked that a cluster has devices for all of them: one that is added would otherwise wait for
    its own until its deadline. The answers are always the same.
    """

    @property
    def start(self) -> int:
        """Replicas that it starts a run with, at least 1."""
        ...

    @property
    def most(self) -> int:
        """Most replicas at once, without those that are stopping; at least `start`."""
        ...

    @property
    def spans(self) -> int | None:
        """Devices of each of its replicas; None: as many as the run's configuration says."""
        ...


@runtime_checkable
class AddsGradients(Protocol):
    """What a `TrainingPolicy` also has if complete groups add gradients early: `streams` is true, `split` gives one part."""

    @property
    def groups_at_once(self) -> int:
        """Most groups of one `Accumulate`, which a cell of the trainer gets; at least 1, and always the same.

        0 if a policy that could add gradients makes optimizer steps instead, with the options that it has.
        """
        ...


@runtime_checkable
class FetchesOnce(AddsGradients, Protocol):
    """What an `AddsGradients` also has if cells get groups of a batch at one time only before it is complete."""

    @property
    def fetched_share(self) -> float:
        """Most groups that they get then, as a share of the batch: above 0, at most 1, and always the same."""
        ...


@runtime_checkable
class FillsCells(AddsGradients, Protocol):
    """What an `AddsGradients` also has if a cell gets groups of an incomplete batch only once they are enough to fill it."""

    @property
    def tokens_at_once(self) -> int:
        """Response tokens that fill a cell: at least 1, and always the same."""
        ...


def adds_gradients(training: TrainingPolicy) -> bool:
    """Whether a training policy has gradients of complete groups added before their batch is complete."""
    return isinstance(training, AddsGradients) and training.groups_at_once != 0


@runtime_checkable
class YieldsDevices(ProvisioningPolicy, Protocol):
    """What a `ProvisioningPolicy` also has if it lends all hybrids to the trainer as a whole, for its steps.

    Its view has the next batch and the loads. `plan` is also asked when `yields_at` is reached, when the trainer begins and
    ends to compute, and when a hybrid that is to yield can. The trainer computes only while every hybrid that is up is lent, so
    all must be once the batch is ready: one that pulls or evaluates once it is done with that. They come back when the trainer
    needs them no more.
    """

    @property
    def yields_at(self) -> float:
        """Share of a batch's groups, above 0 and at most 1, that are complete when hybrids yield while others generate on."""
        ...


@runtime_checkable
class WatchesIterations(ProvisioningPolicy, Protocol):
    """What a `ProvisioningPolicy` may also have: its view then has `FleetView.iterations` and `FleetView.lengths`.

    Trainer and replicas must have devices of their own: the times of stages that take turns on the same devices cannot be
    compared.
    """

    @property
    def iterations(self) -> int:
        """Most iterations that its view has, at least 1. The answer is always the same."""
        ...


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


@dataclass(frozen=True, slots=True)
class Tried:
    """Values that fuzzing gives an option: ``period_s: Annotated[float, Tried((0.5, 2.0))] = 5.0``.

    Args:
        values: one of them is drawn; one that stands there twice is drawn twice as often, and None leaves the option out.
        rarely: one of these is drawn one time in ten instead: for values that soon end a run.
    """

    values: tuple[Any, ...]
    rarely: tuple[Any, ...] = ()
