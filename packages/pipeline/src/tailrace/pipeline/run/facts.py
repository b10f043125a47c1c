"""What a run knows of itself, from its configuration."""

from __future__ import annotations

import contextlib
import json

from tailrace.contracts import Facts, StepCosts
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.config.pools import CostModelConfig
from tailrace.pipeline.run.pools import replica_pools, tensor_parallel


def facts_of(config: RunConfig) -> Facts:
    """The facts of a configuration: what each policy may ask for, on every host."""
    pipeline, rollout, pools = config.pipeline, config.rollout, replica_pools(config)
    alike = pools[0] if len(pools) == 1 else None
    return Facts(
        prompts=pipeline.prompts_per_step,
        samples=pipeline.samples_per_prompt,
        replicas=rollout.replicas,
        slots=alike.replica_batch if alike else pipeline.prompts_per_replica * pipeline.samples_per_prompt,
        max_tokens=rollout.max_tokens,
        tp=alike.tp if alike else tensor_parallel(rollout.options),
        trainer_devices=config.trainer.processes,
        shares=tuple(config.task.shares) or (1.0,),
        shuffle_seed=config.seed,
        silent_s=config.deadlines.silent_s,
        heads=_heads(config),
        costs=None if rollout.cost_model is None else _costs(rollout.cost_model),
        pool_costs=tuple((pool.name, _costs(pool.cost_model)) for pool in rollout.pools if pool.cost_model),
    )


def _costs(table: CostModelConfig) -> StepCosts:
    return StepCosts(table.k1, table.k2, table.k3, table.k4)


def _heads(config: RunConfig) -> int | None:
    """The model's attention heads, where its files or the configuration say them."""
    path, small = config.model.path, config.model.small
    if path is not None and (path / "config.json").is_file():
        with contextlib.suppress(ValueError, AttributeError):  # a file that is damaged is named with the model
            heads = json.loads((path / "config.json").read_text()).get("num_attention_heads")
            return heads if isinstance(heads, int) else None
    return None if small is None else small.heads
