"""Whether the devices and shares that members ask for can be given to them: Ray gives whole GPUs, or a share of one.

With ``executor.device = "cpu"`` the devices are cores, and all else is the same.
"""

from __future__ import annotations

import os

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.policies import build_policy
from tailrace.pipeline.errors import Gathered
from tailrace.pipeline.run.facts import facts_of
from tailrace.pipeline.run.pools import ranker_gpus, replica_pools, tensor_parallel
from tailrace.runtime.executor.deployment import REPLICA, SCORER, TRAINER, rank_id
from tailrace.runtime.executor.seam import Bundle

_ROUNDING = 1e-6


def takes_cores(config: RunConfig) -> bool:
    """Whether the devices that members ask for are cores of a CPU, to which they are pinned."""
    executor = config.executor
    asked = executor.trainer_gpus, executor.replica_gpus, executor.scorer_gpus, ranker_gpus(config)
    return executor.device == "cpu" and any(asked)


def cores_here(config: RunConfig) -> int:
    """Cores of this machine that stand for GPUs in a cluster of the run's own; 0 if none do."""
    return len(os.sched_getaffinity(0)) if takes_cores(config) else 0


def check_shares(config: RunConfig) -> None:
    """Check that no member asks for a share that leaves a rest on each GPU, or for parts of several GPUs.

    Shares are right if all that take one fit on a single GPU, or if each is a GPU divided by a whole number, or if one of each
    kind fill a GPU together, such as 0.6 for a rank of the trainer and 0.4 for the replica beside it.

    Raises:
        ConfigError: one does; a line for each.
    """
    executor, gathered = config.executor, Gathered()
    asked = {
        "executor.trainer_gpus": (executor.trainer_gpus, config.trainer.processes),
        "executor.replica_gpus": (executor.replica_gpus, config.rollout.replicas),
        "executor.scorer_gpus": (executor.scorer_gpus, 1),
        "executor.ranker_gpus": (ranker_gpus(config), 1),
    }
    shares = {key: (each, count) for key, (each, count) in asked.items() if 0 < each < 1}
    alone = sum(each * count for each, count in shares.values()) <= 1 + _ROUNDING
    for key, (each, _) in asked.items():
        if each > 1 and not _whole(each):
            gathered.add(f"key '{key}': found {each:g}, expected a whole number of GPUs, or a share of one")
    total = sum(each for each, _ in shares.values())
    for key, (each, count) in shares.items():
        if not (alone or _whole(1 / each) or _whole(total)):
            others = " and ".join(f"{other} = {share:g}" for other, (share, _) in shares.items() if other != key)
            gathered.add(
                f"key '{key}': found {each:g} for each of {count}{', beside ' + others if others else ''}, which leaves a rest "
                f"on each GPU; expected 1, one divided by a whole number, or shares that make 1 together"
            )
    ranks = config.trainer.processes
    group = trainer_group(config).get((TRAINER, "0"))
    for index, part in enumerate(() if group is None or gathered.lines else group.parts):
        if part > 1 + _ROUNDING and not _whole(part):
            gathered.add(
                f"keys 'executor.trainer_gpus' and 'executor.replica_gpus': found {part:g} for rank {index} and the replicas "
                "on its GPU, expected 1 at most"
            )
            break
    if ranks > 1 and 0 < executor.trainer_gpus <= 0.5 and not (config.trainer.colocated or takes_cores(config)):
        gathered.add(
            f"keys 'executor.trainer_gpus' and 'trainer.processes': found {executor.trainer_gpus:g} and {ranks}, expected more "
            "than 0.5: two ranks would share a GPU, which NCCL refuses"
        )
    gathered.add(*ranks_without_gpus(config, cuda=False))
    own_tp = tensor_parallel(config.rollout.options)
    if config.executor.name == "local" and takes_cores(config):
        gathered.add(
            "keys 'executor.name' and 'executor.device': found 'local' and devices of a CPU, expected 'ray': threads of one "
            "process are pinned to no cores of their own"
        )
    sizes = build_policy("provisioning", config.pipeline.provisioning, facts_of(config)).sizes_of_replicas()
    if 0 < executor.replica_gpus < 1 and (largest := max(sizes, default=1)) > 1:
        gathered.add(
            f"keys 'executor.replica_gpus' and 'pipeline.provisioning': found {executor.replica_gpus:g} of a GPU and "
            f"{config.pipeline.provisioning.name!r}, whose replicas span up to {largest}, expected whole GPUs (1), or a policy "
            "that keeps their size, such as 'scale-down': an engine over several GPUs takes no shares of them"
        )
    for tp in sorted({own_tp, *(pool.tp for pool in replica_pools(config))}):
        each = executor.replica_gpus * tp / own_tp
        if tp > 1 and each and (each < tp or not _whole(each / tp)):
            gathered.add(
                f"keys 'executor.replica_gpus' and 'tensor_parallel_size': found {each:g} GPUs for a replica that spans {tp}, "
                f"expected {tp}: an engine has each of its GPUs for itself"
            )
    gathered.done()


def ranks_without_gpus(config: RunConfig, *, cuda: bool) -> list[str]:
    """Look for ranks that would compute on GPUs although none is kept for them. Returns a line that says so, or nothing.

    Args:
        config: the configuration.
        cuda: whether there is CUDA where they run, so that ``device = "auto"`` takes it.
    """
    device = str(config.trainer.options.get("device", config.executor.device))
    takes_cuda = device.startswith("cuda") or (device == "auto" and cuda)
    if config.trainer.processes == 1 or config.executor.trainer_gpus or not takes_cuda:
        return []
    return [
        (
            f"keys 'executor.trainer_gpus' and 'trainer.processes': found 0 and {config.trainer.processes} on CUDA "
            f"(device = {device!r}), expected executor.trainer_gpus = 1, or device = 'cpu': ranks for which no GPU is kept "
            "take those of replicas, or two take the same one, which NCCL refuses"
        )
    ]


def trainer_group(config: RunConfig) -> dict[tuple[str, str], Bundle]:
    """The part of the trainer's group in which each of its ranks stands, and each replica that has a share of a rank's GPU.

    Replicas stand beside ranks in order, so that each is on a GPU of the cell which the controller counts as its own. The
    scorer with a judge stands beside them, where least is taken, if that leaves its share. Empty for a rank that stands alone.
    """
    executor, ranks, replicas = config.executor, config.trainer.processes, config.rollout.replicas
    shares = config.trainer.colocated and 0 < executor.trainer_gpus < 1 and 0 < executor.replica_gpus < 1
    beside = {f"r{n}": n * ranks // replicas for n in range(replicas)} if shares and not config.rollout.pools else {}
    if ranks == 1 and not beside:
        return {}
    parts = [executor.trainer_gpus] * ranks
    for rank in beside.values():
        parts[rank] += executor.replica_gpus
    members = {(TRAINER, rank_id("0", rank)): rank for rank in range(ranks)}
    members |= {(REPLICA, name): rank for name, rank in beside.items()}
    judges = executor.scorer_gpus if config.reward.judge.model is not None and beside else 0.0
    if judges and min(parts) + judges <= 1 + _ROUNDING:
        members[SCORER, "0"] = judged = parts.index(min(parts))
        parts[judged] += judges
    whole = tuple(round(part, 6) for part in parts)
    return {member: Bundle(TRAINER, index, whole, executor.placement) for member, index in members.items()}


def judge_cell(config: RunConfig) -> int | None:
    """The trainer's cell on one of whose GPUs a judge has a share; None where no cell shares one with it."""
    bundle = trainer_group(config).get((SCORER, "0"))
    return None if bundle is None else bundle.index * config.trainer.cells // config.trainer.processes


def _whole(number: float) -> bool:
    return abs(number - round(number)) < _ROUNDING
