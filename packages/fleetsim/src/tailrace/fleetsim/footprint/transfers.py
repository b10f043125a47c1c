"""Bytes and seconds of what a step moves and scores: batch, weights, state, responses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tailrace.fleetsim.cost.weights import WeightCost
from tailrace.fleetsim.footprint.hosts import (
    TOKEN_BYTES,
    checkpoint_bytes,
    checkpoint_copy_bytes,
    published_bytes,
    relays_on,
)
from tailrace.fleetsim.footprint.machines import Machines
from tailrace.fleetsim.footprint.model import RunModel
from tailrace.fleetsim.footprint.standing import Standing
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.build import trainer_config

FETCH_TOKENS_PER_S = 34.8e6
"""At which a rank's core takes packed rows of a batch (measured: tools/bench/data_plane.py, two cores)."""
VERIFY_S = 0.01
"""Seconds of a core for one response to a mathematical problem (assumed; tools/bench/math_verifiers.py measures them)."""
FETCH, PUBLISH, BROADCAST, PULL = "fetch a batch", "publish a version", "pass a version on", "pull a version"
COPY, WRITE, OFFLOAD, SCORE = "copy the state", "write a checkpoint", "moments there and back", "score a batch"


@dataclass(frozen=True, slots=True)
class StepTransfer:
    """Something that a step moves, or works off.

    Args:
        what: in words.
        by: who does it, each at the same time.
        size: bytes of each; 0 of work that moves none.
        seconds: how long it takes; None: no rate is known.
        blocking: whether the trainer waits for it.
        source: where the rate comes from.
    """

    what: str
    by: str
    size: float
    seconds: float | None
    blocking: bool
    source: str


def transfers(config: RunConfig, machines: Machines, standing: Standing, model: RunModel) -> tuple[StepTransfer, ...]:
    """Everything that a step moves, at most: as if all responses were longest."""
    return tuple(_all(config, machines, standing, model))


def _all(config: RunConfig, machines: Machines, standing: Standing, model: RunModel) -> Iterator[StepTransfer]:
    pipeline, table, device = config.pipeline, config.trainer, machines.device
    responses = pipeline.prompts_per_step * pipeline.samples_per_prompt
    ranks, tokens = table.processes, responses * config.rollout.max_tokens
    far = any(standing.nodes[rank] for rank in standing.ranks)
    fetched = tokens * TOKEN_BYTES["fetched"] / ranks
    seconds = tokens / ranks / FETCH_TOKENS_PER_S
    source = "data_plane.py, two cores"
    if far and machines.node is not None:
        wire = fetched * ranks / machines.node.rdma.bandwidth  # all of it leaves the controller's machine
        seconds, source = max(seconds, wire), f"{source}; one NIC"
    yield StepTransfer(FETCH, f"each of {ranks} ranks", fetched, seconds, True, source)
    version = published_bytes(config, model)
    rate = None if device is None else device.publish_bandwidth
    yield StepTransfer(
        PUBLISH, f"each of {ranks} ranks", version / ranks, _at(version / ranks, rate), True, "docs/gpu.md, one H100"
    )
    nodes = sum(relays_on(config, machines, node) > 0 for node in range(machines.nodes))
    if nodes > 1 and device is not None and model.shape is not None:
        cost = WeightCost.of(model.shape, device, 1, node=machines.node)
        yield StepTransfer(
            BROADCAST, f"{nodes} relays, in a chain", version, cost.broadcast_s(nodes), False, "Laminar, eq. 1"
        )
    widest = max((member.spans for member in standing.replicas), default=1)
    rate = None if device is None else device.pull_bandwidth
    yield StepTransfer(
        PULL, "each worker of a replica", version / widest, _at(version / widest, rate), False, "docs/gpu.md, one H100"
    )
    copied = checkpoint_copy_bytes(config, model)
    rate = None if device is None else device.pcie_bandwidth
    yield StepTransfer(COPY, f"each of {ranks // table.cells} ranks", copied, _at(copied, rate), True, "PCIe, pinned")
    whole = checkpoint_bytes(config, model)
    busiest = (
        max(sum(standing.nodes[rank] == node for rank in standing.ranks) for node in range(machines.nodes)) / ranks
    )
    rate = None if device is None else device.disk_bandwidth
    yield StepTransfer(WRITE, "all ranks", whole, _at(whole * busiest, rate), False, "a machine's disk")
    if "optimizer" in trainer_config(config).offload:
        moments = 2 * 8 * model.parameters / (ranks // table.cells)
        rate = None if device is None else device.pcie_bandwidth
        yield StepTransfer(OFFLOAD, "each rank", moments, _at(moments, rate), True, "PCIe, pinned")
    workers = config.reward.math.workers
    yield StepTransfer(
        SCORE,
        f"{workers} workers, {responses / workers:,.0f} responses each",
        0.0,
        responses * VERIFY_S / workers,
        False,
        "10 ms each, assumed",
    )


def _at(size: float, bandwidth: float | None) -> float | None:
    return None if bandwidth is None else size / bandwidth


def seconds_of(found: tuple[StepTransfer, ...], *names: str) -> float:
    """Seconds of transfers by name, one after another; those without a rate take none."""
    return sum(one.seconds or 0.0 for one in found if one.what in names)
