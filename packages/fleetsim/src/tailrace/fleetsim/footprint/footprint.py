"""The footprint of a run: places of all members, memory by owner, transfers of a step, and what is missing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tailrace.fleetsim.footprint.hosts import host_places
from tailrace.fleetsim.footprint.machines import Machines
from tailrace.fleetsim.footprint.memory import MemoryPlace, check_heads, counts_activations, device_places
from tailrace.fleetsim.footprint.model import RunModel, run_model
from tailrace.fleetsim.footprint.placement import Standing, ranks_and_replicas, stand
from tailrace.fleetsim.footprint.transfers import StepTransfer, transfers
from tailrace.fleetsim.results.result import Result
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.pools import ranker_gpus


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a run takes.

    Args:
        config: the configuration.
        machines: for which it is counted.
        model: its model.
        standing: who stands where.
        places: devices, host memory, shared memory and disk, with who has what there.
        transfers: what a step moves.
        notes: what is not counted, one line each.
    """

    config: RunConfig
    machines: Machines
    model: RunModel
    standing: Standing
    places: tuple[MemoryPlace, ...]
    transfers: tuple[StepTransfer, ...]
    notes: tuple[str, ...] = ()

    def place(self, beginning: str) -> MemoryPlace:
        """The first place whose name has this beginning.

        Raises:
            LookupError: there is none.
        """
        found = next((place for place in self.places if place.name.startswith(beginning)), None)
        if found is None:
            raise LookupError(
                f"no place begins with {beginning!r}, expected one of {[one.name for one in self.places]}"
            )
        return found

    @property
    def shortages(self) -> tuple[str, ...]:
        """What does not fit, one line each, with the number that is missing."""
        return tuple(line for place in self.places if (line := place.shortage()) is not None)

    @property
    def cautions(self) -> tuple[str, ...]:
        """What may not fit if a run takes the most that it can, one line each."""
        return tuple(line for place in self.places if (line := place.caution()) is not None)

    def forecast(self) -> Result:
        """The simulator's expectation of a step; see `forecast`."""
        from tailrace.fleetsim.footprint.forecast import forecast  # it brings the simulator, which no other part needs

        return forecast(self.config, self.machines, self.standing, self.model, self.transfers)


def footprint(config: RunConfig, machines: Machines | None = None) -> Footprint:
    """Count what a run takes.

    Args:
        machines: on paper, the machines that it is counted for; None: as many devices as the configuration asks for.

    Raises:
        DoesNotFitError: members find no device, or a replica's weights leave no room.
        FleetError: what the model or its engine cannot be.
        ConfigError: the trainer's or the engine's options are wrong.
    """
    model = run_model(config, on_paper=machines is not None)
    asked = sum(member.spans for members in ranks_and_replicas(config) for member in members if member.devices)
    asked += math.ceil(config.executor.scorer_gpus) + math.ceil(ranker_gpus(config))
    machines = machines or Machines(devices=asked)
    check_heads(config, model)
    standing = stand(config, machines)
    places = [*device_places(config, machines, standing, model), *host_places(config, machines, standing, model)]
    return Footprint(
        config=config,
        machines=machines,
        model=model,
        standing=standing,
        places=tuple(places),
        transfers=transfers(config, machines, standing, model),
        notes=_notes(config, model),
    )


def _notes(config: RunConfig, model: RunModel) -> tuple[str, ...]:
    found = []
    if not counts_activations(config, model):
        found.append(f"activations of {model.name} with backend {config.trainer.backend!r} are not counted")
    if not model.parameters:
        found.append(f"{model.name}: its size is not known, so weights are not counted")
    return tuple(found)
