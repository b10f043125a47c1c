"""The step of a run as the simulator expects it on the machines that it is counted for."""

from __future__ import annotations

from typing import Any

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.footprint.machines import Machines
from tailrace.fleetsim.footprint.memory import options_of
from tailrace.fleetsim.footprint.model import RunModel
from tailrace.fleetsim.footprint.placement import Standing, StandingMember
from tailrace.fleetsim.footprint.transfers import COPY, FETCH, OFFLOAD, PUBLISH, WRITE, StepTransfer, seconds_of
from tailrace.fleetsim.hardware import models
from tailrace.fleetsim.results.result import Result
from tailrace.fleetsim.run import simulate
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.build import trainer_config

_WARM_UP, _STEPS = 2, 6
_ENGINE_STEP_S = 0.005
"""Seconds that an engine takes for a step beside its kernels, as in configs/fleet/laminar.toml."""
_OPTIMIZER_S = 0.5


def forecast(
    config: RunConfig, machines: Machines, standing: Standing, model: RunModel, moved: tuple[StepTransfer, ...]
) -> Result:
    """Simulate a few steps of a run with the costs of its machines and the seconds of its own transfers.

    Lengths are those of ``[fleet.workload]``, or else the simulator's usual ones below `rollout.max_tokens`.

    Raises:
        FleetError: the simulator has no such device, model or layout.
        FleetsimError, ConfigError: the fleet cannot be.
    """
    table = fleet_table(config, machines, standing, model, moved)
    pipeline = config.pipeline.model_copy(update={"steps": _STEPS})
    changed = {"fleet": table, "pipeline": pipeline, "faults": (), "mtbf_s": None, "ranker": None}
    return simulate(config.model_copy(update=changed), seed=config.seed, keep_events=False)


def fleet_table(
    config: RunConfig, machines: Machines, standing: Standing, model: RunModel, moved: tuple[StepTransfer, ...]
) -> dict[str, Any]:
    """The table ``[fleet]`` of a run on machines: what `tailrace simulate` would be given.

    Raises:
        FleetError: see `forecast`.
    """
    if machines.device is None:
        raise FleetError("found no kind of device, expected one for a forecast, such as --devices 8xH100")
    settings, kind = trainer_config(config), machines.device.name
    recomputed = settings.activation_checkpointing == "on" or settings.activation_checkpointing == "auto"
    passes = float(recomputed) + bool(settings.kl_coefficient) + settings.open_loss().needs_proximal
    colocated = config.trainer.colocated
    return {
        **{name: value for name, value in config.fleet.items() if name in ("workload", "scoring", "ranker")},
        "sites": {**{site: {} for site in config.relay.sites}, **config.fleet.get("sites", {})},
        "model": known_name(model),
        "weights": "relays",
        "placement": "colocated" if colocated else "split",
        "warm_up": _WARM_UP,
        "trainer": {
            "device": kind,
            **({} if colocated else {"gpus": len(standing.ranks)}),
            "passes": passes,
            "critic": settings.has_critic,
            "tensor_parallel": settings.tensor_parallel,
            "data_s": seconds_of(moved, FETCH, PUBLISH),
            "optimizer_s": _OPTIMIZER_S + seconds_of(moved, OFFLOAD),
        },
        "rollout": [*_pools(config, machines, standing)],
        "delays": {"copy_s": seconds_of(moved, COPY), "checkpoint_s": seconds_of(moved, WRITE)},
    }


def known_name(model: RunModel) -> str:
    """The name by which the simulator's table has the model.

    Raises:
        FleetError: it has none of this shape.
    """
    if model.shape is not None:
        for name, shape in models().items():
            if all(
                getattr(shape, field) == getattr(model.shape, field)
                for field in ("layers", "hidden", "ffn", "query_heads", "kv_heads", "head_dim", "experts", "tied")
            ):
                return name
    raise FleetError(f"found {model.name}, whose shape is none of the simulator's models ({', '.join(models())})")


def _pools(config: RunConfig, machines: Machines, standing: Standing) -> list[dict[str, Any]]:
    kinds = {site.site: site.device.name for site in machines.sites if site.device is not None}
    by_pool: dict[int | None, list[StandingMember]] = {}
    for member in standing.replicas:
        by_pool.setdefault(member.pool, []).append(member)
    found = []
    for place, members in by_pool.items():
        options = options_of(config, members[0])
        own: dict[str, Any] = {}
        if place is not None:
            pool = config.rollout.pools[place]
            if pool.site:
                own["site"] = pool.site
            own |= {"name": pool.name, "hybrid": pool.hybrid}
        found.append(
            {
                "device": kinds[machines.at(standing.nodes[members[0]]).site],
                "gpus": len(members) * options.tensor_parallel_size,
                "tensor_parallel": options.tensor_parallel_size,
                "max_running": options.max_num_seqs or 256,
                "memory_share": options.gpu_memory_utilization,
                "step_s": _ENGINE_STEP_S,
                **own,
            }
        )
    return found
