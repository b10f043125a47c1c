"""Bytes and seconds of what a step moves and scores: batch, weights, state, responses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tailrace.fleetsim.cost.weights import WeightCost
from tailrace.fleetsim.errors import ProfileError
from tailrace.fleetsim.fleet.config import site_link
from tailrace.fleetsim.footprint.hosts import (
    TOKEN_BYTES,
    checkpoint_bytes,
    checkpoint_copy_bytes,
    published_bytes,
    relays_on,
    runs_programs,
    trained_parameters,
)
from tailrace.fleetsim.footprint.machines import Machines
from tailrace.fleetsim.footprint.memory import state_bytes
from tailrace.fleetsim.footprint.model import RunModel
from tailrace.fleetsim.footprint.placement import Standing
from tailrace.fleetsim.hardware.links import Link
from tailrace.fleetsim.profile.machine import MachineProfile, load_machine
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.build import trainer_config
from tailrace.pipeline.run.device_shares import takes_cores

FETCH_TOKENS_PER_S = 34.8e6
"""Packed rows of a batch that one core of a rank takes (measured: tools/bench/data_plane.py, two cores)."""
VERIFY_S = 0.01
"""Seconds of a core for one response to a mathematical problem (assumed; tools/bench/math_verifiers.py measures them)."""
SANDBOX_S = 0.029
"""Seconds of a core for a program that does nothing, in the sandbox `sandlock` (measured: docs/rewards.md)."""
_RECORD = "devices.toml"
_LINKED = "fleet.sites, or 80 Gbps"
FETCH, PUBLISH, BROADCAST, PULL = "fetch a batch", "publish a version", "pass a version on", "pull a version"
CROSS = "send a version to the site"
LEAVE, SLEEP = "leave shared devices and come back", "sleep and wake on shared devices"
COPY, WRITE, OFFLOAD, SCORE = "copy the state", "write a checkpoint", "moments there and back", "score a batch"


@dataclass(frozen=True, slots=True)
class StepTransfer:
    """A transfer or a piece of work of a step.

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
    moved = [
        *_batch(config, machines, standing),
        *_weights(config, machines, standing, model),
        *_state(config, machines, standing, model),
        *_scores(config),
    ]
    profile = config.fleet.get("profile")
    if machines.device is None and isinstance(profile, str):
        with contextlib.suppress(ProfileError):  # a run does not read it; the simulator names what is wrong with it
            return tuple(_as_measured(moved, load_machine(profile)))
    return tuple(moved)


def _as_measured(moved: list[StepTransfer], machine: MachineProfile) -> Iterator[StepTransfer]:
    """The same with the seconds that `tailrace profile` measured in a run, whatever the size."""
    weights, delays = machine.weights, machine.delays
    known = {
        FETCH: machine.training.batch_s,
        PUBLISH: weights.publish_s,
        PULL: weights.pull_s,
        COPY: delays.checkpoint_s,
        WRITE: delays.durable_s,
    }
    for one in moved:
        if one.what in known:
            yield replace(one, seconds=known[one.what], source=f"measured: profile {machine.name}")
        else:
            yield one


def _batch(config: RunConfig, machines: Machines, standing: Standing) -> Iterator[StepTransfer]:
    pipeline, ranks = config.pipeline, config.trainer.processes
    tokens = pipeline.prompts_per_step * pipeline.samples_per_prompt * config.rollout.max_tokens
    fetched = tokens * TOKEN_BYTES["fetched"] / ranks
    seconds, source = tokens / ranks / FETCH_TOKENS_PER_S, "data_plane.py, two cores"
    if any(standing.nodes[rank] for rank in standing.ranks) and machines.node is not None:
        wire = fetched * ranks / machines.node.rdma.bandwidth  # all of it leaves the controller's machine
        seconds, source = max(seconds, wire), f"{source}; one NIC"
    yield StepTransfer(FETCH, f"each of {ranks} ranks", fetched, seconds, True, source)


def _weights(config: RunConfig, machines: Machines, standing: Standing, model: RunModel) -> Iterator[StepTransfer]:
    version, ranks, device = published_bytes(config, model), config.trainer.processes, machines.device
    rate = None if device is None else device.publish_bandwidth
    mine = version / ranks
    yield StepTransfer(PUBLISH, f"each of {ranks} ranks", mine, _at(mine, rate), True, _RECORD)
    for site in machines.sites:
        where = f" at {site.site}" if site.site else ""
        if site.site:
            link = site_link(config.fleet, site.site)
            crossing = version * link.share
            seconds = Link(site.site, link.bandwidth, link.latency_s).transfer_s(crossing)
            yield StepTransfer(CROSS, f"one relay{where}", crossing, seconds, False, _LINKED)
        nodes = sum(relays_on(config, machines, node) > 0 for node in machines.nodes_at(site.site))
        if nodes > 1 and site.device is not None and model.shape is not None:
            chain = WeightCost.of(model.shape, site.device, 1, node=site.node)
            whole_s = replace(chain, weight_bytes=version).broadcast_s(nodes) if version else 0.0
            by = f"{nodes} relays{where}, in a chain"
            yield StepTransfer(BROADCAST, by, version, whole_s, False, "Laminar, eq. 1")
        alike = {member.spans for member in standing.replicas if machines.device is None or member.site == site.site}
        if alike:
            part = version / min(alike)  # the most that any of them takes
            rate = None if site.device is None else site.device.pull_bandwidth
            by = f"each worker of a replica{where}"
            yield StepTransfer(PULL, by, part, _at(part, rate), False, _RECORD)


def _state(config: RunConfig, machines: Machines, standing: Standing, model: RunModel) -> Iterator[StepTransfer]:
    table, device = config.trainer, machines.device
    of_cell = table.processes // table.cells
    pcie = None if device is None else device.pcie_bandwidth
    copied, whole = checkpoint_copy_bytes(config, model), checkpoint_bytes(config, model)
    yield StepTransfer(COPY, f"each of {of_cell} ranks", copied, _at(copied, pcie), True, _RECORD)
    on_node = (sum(standing.nodes[rank] == node for rank in standing.ranks) for node in range(machines.nodes))
    busiest = max(on_node) / table.processes
    rate = None if device is None else device.disk_bandwidth
    yield StepTransfer(WRITE, "all ranks", whole, _at(whole * busiest, rate), False, _RECORD)
    if "optimizer" in trainer_config(config).offload:
        moments = 2 * 8 * trained_parameters(config, model) / of_cell
        yield StepTransfer(OFFLOAD, "each rank", moments, _at(moments, pcie), True, _RECORD)
    if table.colocated and not takes_cores(config):
        moved = 2 * state_bytes(config, model)
        yield StepTransfer(LEAVE, f"each of {of_cell} ranks", moved, _at(moved, pcie), True, _RECORD)
        level, weights = config.rollout.sleep_level, model.parameters * 2
        for tp in sorted({member.spans for member in standing.replicas}) if level in (None, 1) else ():
            moved = 2 * weights / tp
            yield StepTransfer(SLEEP, "each worker of a replica", moved, _at(moved, pcie), True, _RECORD)


def _scores(config: RunConfig) -> Iterator[StepTransfer]:
    """Work of scoring by core: answers of functions, programs in a sandbox."""
    responses = config.pipeline.prompts_per_step * config.pipeline.samples_per_prompt
    code = runs_programs(config)
    for kind, workers, each_s, source in (
        ("answers", config.reward.math.workers, VERIFY_S, "10 ms of a core each, assumed"),
        (
            "programs",
            config.reward.code.workers,
            SANDBOX_S,
            "29 ms of a core each and the program's own: docs/rewards.md",
        ),
    ):
        if code == (kind == "programs"):
            by = f"{workers} workers, {responses / workers:,.0f} {kind} each"
            yield StepTransfer(SCORE, by, 0.0, responses * each_s / workers, False, source)


def _at(size: float, bandwidth: float | None) -> float | None:
    return None if bandwidth is None else size / bandwidth


def seconds_of(found: tuple[StepTransfer, ...], *names: str) -> float:
    """Seconds of transfers by name, one after another; those without a rate take none."""
    return sum(one.seconds or 0.0 for one in found if one.what in names)
