"""What `tailrace fit-cost` would find of both stages of a fleet, by which provisioning chooses its start (StreamRL, 4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.fleetsim.errors import FleetError
from tailrace.fleetsim.layout import FleetLayout
from tailrace.fleetsim.pools import Costs
from tailrace.fleetsim.stage_times import StageTimes
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.stage_figures import at_equal_distances

_LENGTHS = 1_000


def fitted_stages(
    config: RunConfig, split: FleetLayout, sizes: Mapping[int, Costs], takes: Mapping[str, Any]
) -> dict[str, Any]:
    """Options of `balanced`, below those that the configuration has: costs of replicas, training, lengths, devices.

    Args:
        sizes: costs of a replica, by its devices.
        takes: the options that provisioning has.

    Raises:
        FleetError: it has not these; or there are several pools.
    """
    provisioning = config.pipeline.provisioning
    if "replica_costs" not in takes or len(split.pools) > 1:
        raise FleetError(
            f"table 'fleet': found fit_stages = true with provisioning {provisioning.name!r} and {len(split.pools)} pools, "
            "expected provisioning 'balanced' and one pool"
        )
    times = StageTimes(config)
    costs = []
    for size, (decode, _) in sorted(sizes.items()):
        fitted = decode.coefficients()
        costs.append((size, decode.kv_capacity_tokens, fitted.k1, fitted.k2, fitted.k3, fitted.k4))
    found: dict[str, Any] = {
        "devices": split.rollout_gpus,
        "replica_costs": costs,
        "train_s": times.train_s(split.trainer_gpus),
        "lengths": at_equal_distances(times.lengths, min(_LENGTHS, len(times.lengths))),
    }
    return {**found, **provisioning.options}
