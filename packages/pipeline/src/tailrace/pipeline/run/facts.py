"""What a run knows of itself, from its configuration."""

from __future__ import annotations

import contextlib

from tailrace.contracts import Facts, PoolFacts, ProvisioningPolicy, SizeCosts, StepCosts
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.parallelism import read_parallelism
from tailrace.pipeline.config.policies import build_policy
from tailrace.pipeline.config.pools import CostModelConfig
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.engine import abilities_of, selected_engine
from tailrace.pipeline.run.model_check import readable_config
from tailrace.pipeline.run.pools import replica_pools, tensor_parallel


def facts_of(config: RunConfig) -> Facts:
    """The facts of a configuration: what each policy may ask for, on every host.

    Raises:
        ConfigError: the profile of sizes (`rollout.parallelism`) cannot be read.
    """
    pipeline, rollout, pools = config.pipeline, config.rollout, replica_pools(config)
    alike = pools[0] if len(pools) == 1 else None
    tp = alike.tp if alike else tensor_parallel(rollout.options)
    return Facts(
        prompts=pipeline.prompts_per_step,
        samples=pipeline.samples_per_prompt,
        replicas=rollout.replicas,
        slots=alike.replica_batch if alike else pipeline.prompts_per_replica * pipeline.samples_per_prompt,
        max_tokens=rollout.max_tokens,
        tp=tp,
        trainer_devices=config.trainer.processes,
        shares=tuple(config.task.shares) or (1.0,),
        shuffle_seed=config.shuffle_seed,
        silent_s=config.deadlines.silent_s,
        heads=_heads(config),
        devices_per_machine=1 if tp == 1 and _spans_one(config) else None,
        sizes=_sizes(config),
        costs=None if rollout.cost_model is None else _costs(rollout.cost_model),
        pools=tuple(PoolFacts(pool.name, pool.count, pool.tp, pool.replica_batch) for pool in pools),
        pool_costs=tuple((pool.name, _costs(pool.cost_model)) for pool in rollout.pools if pool.cost_model),
    )


def _costs(table: CostModelConfig) -> StepCosts:
    return StepCosts(table.k1, table.k2, table.k3, table.k4)


def allocated(config: RunConfig) -> RunConfig:
    """The configuration with as many processes of the trainer as provisioning gives it devices, where it shares them out.

    What is wrong with its options is left for `build.check`, which names it beside all else.
    """
    with contextlib.suppress(ConfigError):
        policy: ProvisioningPolicy = build_policy("provisioning", config.pipeline.provisioning, facts_of(config))
        if (devices := policy.trains_on()) is not None:
            return config.model_copy(update={"trainer": config.trainer.model_copy(update={"processes": devices})})
    return config


def _spans_one(config: RunConfig) -> bool:
    """Whether the run's engine spans one device and never more. An engine that is not there is named with its key."""
    with contextlib.suppress(ConfigError):
        return not abilities_of(config, selected_engine(config)).resizes
    return False


def _sizes(config: RunConfig) -> SizeCosts | None:
    """What `tailrace profile --parallelism` measured."""
    if config.rollout.parallelism is None:
        return None
    found = read_parallelism(config.rollout.parallelism)
    return SizeCosts(
        short=found.short,
        long=found.long,
        smallest=found.smallest,
        resize_s=found.resize_s,
        longest=found.longest,
        lengths=found.lengths,
        replica_costs=found.replica_costs,
    )


def _heads(config: RunConfig) -> int | None:
    """What the devices of a replica divide, where the model's files or the configuration say it: its attention heads.

    Devices are powers of two. Where the number of key-value heads is none, only what divides these is a split of both.
    """
    path, small = config.model.path, config.model.small
    if path is None:
        found = {} if small is None else {"num_attention_heads": small.heads, "num_key_value_heads": small.kv_heads}
    else:
        found = readable_config(path)
    heads = found.get("num_attention_heads")
    if not isinstance(heads, int):
        return None
    kv_heads = found.get("num_key_value_heads")
    return kv_heads if isinstance(kv_heads, int) and kv_heads & (kv_heads - 1) else heads
