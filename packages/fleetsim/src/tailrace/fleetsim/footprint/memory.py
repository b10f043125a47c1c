"""Bytes by place, owner and phase, and what is missing where: the records, and the memory of devices.

A device has, from step to step, weights or a shard of the trainer's state; beside it in one phase the activations of a
micro-batch, in another whole gradients. The most of a place is what stays and the largest phase.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tailrace.fleetsim.cost.capacity import kv_capacity_tokens
from tailrace.fleetsim.errors import DoesNotFitError, FleetError
from tailrace.fleetsim.footprint.machines import Machines
from tailrace.fleetsim.footprint.model import RunModel, run_model
from tailrace.fleetsim.footprint.placement import DeviceSeat, Standing, StandingMember
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.build import trainer_config
from tailrace.pipeline.run.device_shares import takes_cores
from tailrace.pipeline.run.pools import engine_options, tensor_parallel
from tailrace.rollout import EngineOptions
from tailrace.rollout.options import resolve_dtype, splits_over
from tailrace.runtime.executor.deployment import RANKER, SCORER, TRAINER
from tailrace.trainer.memory import COUNTED, DTYPE_BYTES, TrainerMemory, advice, trainer_memory

CUDA_BYTES = 1_500_000_000
"""Bytes of CUDA, its libraries and NCCL in a process, before anything is loaded (inferred)."""
ENGINE_BYTES = 2_000_000_000
"""Bytes of an engine's activations and graphs, where no kind of device says it (`Device.reserve_bytes`; inferred)."""
COMPUTING, REDUCING, UPDATING = "computing", "reducing", "updating"
GB = 1e9
_ROOM_KEY = "'executor.gpu_memory_gb'"


@dataclass(frozen=True, slots=True)
class OwnedBytes:
    """Bytes of one owner at a place.

    Args:
        owner: the member or process, such as ``trainer`` or ``replica r1``.
        what: what they are.
        size: bytes.
        phase: the only phase in which they are there; empty: always.
        at_most: whether this is a bound that most runs stay far below. A run is not refused for it.
    """

    owner: str
    what: str
    size: float
    phase: str = ""
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """A device, or the memory, the shared memory or the disk of a host.

    Args:
        name: in words, such as ``GPU 3 of machine 0``.
        parts: who has what there.
        capacity: bytes that there are; None: not known.
        keys: keys of the configuration that the parts follow from.
        advice: what to set if it does not fit, as ``key = value``; empty: nothing is known that would help.
    """

    name: str
    parts: tuple[OwnedBytes, ...]
    capacity: float | None = None
    keys: str = ""
    advice: str = ""

    @property
    def phases(self) -> dict[str, float]:
        """Bytes in each phase, what is always there included; one entry with an empty name where there are no phases."""
        always = sum(part.size for part in self.parts if not part.phase)
        names = dict.fromkeys(part.phase for part in self.parts if part.phase)
        if not names:
            return {"": always}
        return {name: always + sum(part.size for part in self.parts if part.phase == name) for name in names}

    @property
    def peak(self) -> float:
        """The most that it has at one time."""
        return max(self.phases.values())

    def owners(self) -> dict[str, float]:
        """Bytes of each owner when there are most, the largest first."""
        worst = max(self.phases, key=lambda name: self.phases[name])
        found: dict[str, float] = {}
        for part in self.parts:
            if part.phase in ("", worst):
                found[part.owner] = found.get(part.owner, 0.0) + part.size
        return dict(sorted(found.items(), key=lambda one: -one[1]))

    def shortage(self) -> str | None:
        """One line if it has too little; None if it has enough, or if that is not known."""
        sure = dataclasses.replace(self, parts=tuple(part for part in self.parts if not part.at_most))
        phases = sure.phases
        worst = max(phases, key=lambda name: phases[name])
        peak = phases[worst]
        if self.capacity is None or peak <= self.capacity:
            return None
        parts = [part for part in sure.parts if part.phase in ("", worst) and part.size >= 0.001 * peak]
        parts.sort(key=lambda part: -part.size)
        listed = ", ".join(f"{gigabytes(part.size)} of {part.owner}: {part.what}" for part in parts[:6])
        keys = f"keys {self.keys}: " if self.keys else ""
        more = f" ({listed}{', and others' if len(parts) > 6 else ''})"
        change = f"; set {self.advice}" if self.advice else ""
        return (
            f"{keys}found members that take {gigabytes(peak)} of {self.name}{more}, expected at most "
            f"{gigabytes(self.capacity)}: {gigabytes(peak - self.capacity)} are missing{change}"
        )

    def caution(self) -> str | None:
        """One line if it has enough, but not for all that may be at most; None otherwise."""
        if self.capacity is None or self.peak <= self.capacity or self.shortage() is not None:
            return None
        bounds = [part for part in self.parts if part.at_most]
        listed = ", ".join(f"{gigabytes(part.size)} of {part.owner}: {part.what}" for part in bounds)
        return f"{self.name} has {gigabytes(self.capacity)}, which does not do for all that may come ({listed})"


def gigabytes(count: float) -> str:
    """Bytes in words, in 10^9, or in 10^6 where that reads better."""
    return f"{count / GB:,.1f} GB" if abs(count) >= 0.05 * GB else f"{count / 1e6:,.1f} MB"


def device_places(config: RunConfig, machines: Machines, standing: Standing, model: RunModel) -> list[MemoryPlace]:
    """The memory of every device on which somebody stands; alike ones are one place.

    Raises:
        DoesNotFitError: the weights of a replica leave no room for its KV cache.
    """
    if takes_cores(config):
        return []  # what members on cores have is their host's memory
    alike: dict[tuple[object, ...], list[DeviceSeat]] = {}
    for seat in standing.seats:
        key = tuple((member.role, member.devices, member.pool) for member in seat.members)
        if key:
            alike.setdefault((machines.at(seat.node).site, *key), []).append(seat)
    found = []
    for seats in alike.values():
        parts: list[OwnedBytes] = []
        advised, room = "", _room(config, machines.at(seats[0].node))
        for member in sorted(seats[0].members, key=lambda member: member.role == TRAINER):
            if member.role == TRAINER:  # the last: it has what is left
                limit = room - sum(part.size for part in parts)
                of_rank, advised = rank_parts(config, model, limit=limit)
                parts += of_rank
            elif member.role == SCORER:
                parts += judge_parts(config, machines)
            elif member.role == RANKER:
                share = room * min(1.0, member.devices)  # what its fine-tuning takes is checked beside its settings
                parts.append(OwnedBytes(RANKER, "its share", share, at_most=True))
            else:
                parts += replica_parts(config, machines.at(seats[0].node), model, member)
        keys = "'trainer.options'" if advised else "'rollout.options' and 'executor'"
        if machines.device is None:
            keys += ", or 'executor.gpu_memory_gb', what each GPU has"
        found.append(MemoryPlace(_named(seats, machines), tuple(parts), room, keys, advised))
    return found


def judge_parts(config: RunConfig, machines: Machines) -> list[OwnedBytes]:
    """What a judge has on its device: its model, or as much of it as it may."""
    judge, parts = config.reward.judge, [OwnedBytes("judge", "CUDA", CUDA_BYTES)]
    if judge.memory_mib is not None:
        return [*parts, OwnedBytes("judge", "weights, at most memory_mib", judge.memory_mib * 2**20)]
    if judge.model is None:
        return parts
    table = config.model.model_copy(update={"path": judge.model})
    model = run_model(config.model_copy(update={"model": table}), on_paper=machines.device is not None)
    return [*parts, OwnedBytes("judge", "weights", 2 * model.parameters)]


def rank_parts(
    config: RunConfig, model: RunModel, *, gpu: bool = True, limit: float | None = None
) -> tuple[list[OwnedBytes], str]:
    """What a rank of the trainer has where it computes, and the setting to change if that is more than `limit` bytes."""
    table, settings = config.trainer, trainer_config(config)
    ranks = table.processes // table.cells
    parts = [OwnedBytes("trainer", "CUDA and NCCL", CUDA_BYTES)] if gpu else []
    if not counts_activations(config, model):
        computed = DTYPE_BYTES[settings.dtype]
        every_rank_has_all = table.backend == "deepspeed" and settings.zero_stage != 3

        def state(parameters: int) -> float:
            return parameters * (16 / ranks + (computed if every_rank_has_all else 0))

        if table.adapter.rank:
            base = computed * model.parameters / (1 if every_rank_has_all else ranks)
            parts.append(OwnedBytes("trainer", "the frozen base, without activations", base))
        else:
            parts.append(OwnedBytes("trainer", "state, without activations", state(model.parameters)))
        if settings.has_critic:
            of_critic = model.parameters if model.dense is None else model.dense.critic_parameters
            parts.append(OwnedBytes("trainer", "the critic's state", state(of_critic)))
        return parts, ""
    assert model.dense is not None
    longest = longest_tokens(config)
    found = trainer_memory(model.dense, settings, ranks=ranks, longest=longest, gpu=gpu, backend=table.backend)
    parts += trainer_parts(found)
    if limit is None or found.peak + CUDA_BYTES <= limit:
        return parts, ""
    left = int(limit) - CUDA_BYTES
    change = advice(model.dense, settings, ranks=ranks, longest=longest, limit=left, backend=table.backend)
    return parts, change


def state_bytes(config: RunConfig, model: RunModel) -> float:
    """What a rank of the trainer moves to leave a device: parameters, gradients, moments; with an adapter, the frozen base."""
    whole = {"the frozen base, without activations", "state, without activations", "the critic's state"}
    kept = {"parameters", "gradients", "moments"} | whole
    return sum(part.size for part in rank_parts(config, model, gpu=False)[0] if part.what in kept)


def counts_activations(config: RunConfig, model: RunModel) -> bool:
    """Whether there is arithmetic for what a pass keeps: of a dense model whole on a backend that is built in."""
    return model.dense is not None and config.trainer.backend in COUNTED and not config.trainer.adapter.rank


def trainer_parts(found: TrainerMemory) -> list[OwnedBytes]:
    """The trainer's memory as parts: their largest phase is `TrainerMemory.peak`."""
    parts = [OwnedBytes("trainer", "parameters", found.parameters), OwnedBytes("trainer", "gradients", found.gradients)]
    parts.append(OwnedBytes("trainer", "moments", found.optimizer, UPDATING if found.away else ""))
    for what, size in (("activations", found.activations), ("logits", found.logits), ("gathered", found.gathered)):
        parts.append(OwnedBytes("trainer", what, size, COMPUTING))
    parts.append(OwnedBytes("trainer", "whole gradients", found.reducing, REDUCING))
    return parts


def longest_tokens(config: RunConfig) -> int:
    """Most tokens of a prompt with its response, as far as the configuration tells."""
    return int(config.rollout.options.get("max_model_len") or config.rollout.max_tokens)


def options_of(config: RunConfig, member: StandingMember) -> EngineOptions:
    """The engine options of a replica."""
    table = config.rollout
    return EngineOptions.read(
        table.options if member.pool is None else engine_options(config, table.pools[member.pool])
    )


def weight_bytes(options: EngineOptions, device: str) -> int:
    """Bytes of a parameter in an engine on ``cuda`` or ``cpu``."""
    return 4 if resolve_dtype(options, device) == "float32" else 2


def replica_parts(config: RunConfig, machines: Machines, model: RunModel, member: StandingMember) -> list[OwnedBytes]:
    """What a replica has on each of its devices.

    Args:
        machines: those of its site.

    Raises:
        DoesNotFitError: there is no room for one trajectory in its KV cache.
    """
    options = options_of(config, member)
    tp, owner = options.tensor_parallel_size, "replica"
    weights = model.parameters * weight_bytes(options, "cuda") / tp
    total = _room(config, machines) * options.gpu_memory_utilization
    parts = [OwnedBytes(owner, "weights", weights)]
    reserve = ENGINE_BYTES if machines.device is None else machines.device.reserve_bytes
    if options.kv_cache_bytes is not None:
        return [
            *parts,
            OwnedBytes(owner, "KV cache", options.kv_cache_bytes),
            OwnedBytes(owner, "engine", reserve),
        ]
    cache = total - reserve - weights
    tokens = kv_tokens(config, machines, model, member)
    if cache <= 0 or (tokens is not None and tokens < longest_tokens(config)):
        raise DoesNotFitError(
            f"keys 'rollout.options.gpu_memory_utilization', 'rollout.options.tensor_parallel_size' and "
            f"{_ROOM_KEY if machines.device is None else '--devices'}: found "
            f"{options.gpu_memory_utilization:g} of {gigabytes(_room(config, machines))} on each of {tp} GPU(s), of which "
            f"{gigabytes(weights)} are weights and {gigabytes(reserve)} the engine's own, expected room for the "
            f"{longest_tokens(config):,} tokens of one trajectory: found {max(0, tokens or 0):,}"
        )
    words = "KV cache" if tokens is None else f"KV cache of {tokens:,} tokens"
    return [*parts, OwnedBytes(owner, words, cache), OwnedBytes(owner, "engine", reserve)]


def kv_tokens(config: RunConfig, machines: Machines, model: RunModel, member: StandingMember) -> int | None:
    """Tokens that fit into a replica's KV cache, by the simulator's function; None if shape or device is not told."""
    if model.shape is None or machines.device is None:
        return None
    options = options_of(config, member)
    tuned = dataclasses.replace(machines.device, memory_share=options.gpu_memory_utilization)
    each = weight_bytes(options, "cuda")
    shape = dataclasses.replace(model.shape, bytes_per_param=each, bytes_per_kv=each)
    try:
        return kv_capacity_tokens(shape, tuned, options.tensor_parallel_size)
    except DoesNotFitError:
        return 0


def check_heads(config: RunConfig, model: RunModel) -> None:
    """Check that the model's heads can be split over the devices of a replica.

    Raises:
        FleetError: they cannot.
    """
    if model.shape is None:
        return
    heads, kv_heads = model.shape.query_heads, model.shape.kv_heads
    for options in (
        config.rollout.options,
        *(engine_options(config, pool) for pool in config.rollout.pools),
    ):
        tp = tensor_parallel(options)
        if not splits_over(tp, heads, kv_heads):
            raise FleetError(
                f"key 'rollout.options.tensor_parallel_size': found {tp} for {model.name}, which has {heads} attention heads "
                f"and {kv_heads} key-value heads, expected a number over which they can be split, such as "
                f"{max(size for size in range(1, tp) if splits_over(size, heads, kv_heads))}"
            )


def _room(config: RunConfig, machines: Machines) -> float:
    """Bytes of each device."""
    return machines.device.memory_bytes if machines.device is not None else config.executor.gpu_memory_gb * GB


def _named(seats: Sequence[DeviceSeat], machines: Machines) -> str:
    site = machines.at(seats[0].node)
    kind = "" if site.device is None else f" ({site.device.name}{f' at {site.site}' if site.site else ''})"
    if machines.nodes == 1:
        return f"GPU {_ranges(seat.index for seat in seats)}{kind}"
    by_node: dict[str, list[int]] = {}
    for node in dict.fromkeys(seat.node for seat in seats):
        by_node.setdefault(_ranges(seat.index for seat in seats if seat.node == node), []).append(node)
    return "; ".join(f"GPU {held} of machine {_ranges(nodes)}" for held, nodes in by_node.items()) + kind


def _ranges(numbers: Iterable[int]) -> str:
    """Ascending numbers in words, such as ``0 to 3, 6``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
