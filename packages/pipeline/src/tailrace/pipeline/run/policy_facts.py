"""What policies may want to know of a configuration: its prompts, costs and devices."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.pools import replica_pools, tensor_parallel


def stream_facts(config: RunConfig) -> dict[str, Any]:
    """What a batching policy may want to know of the prompts."""
    return {
        "prompts": config.pipeline.prompts_per_step,
        "max_tokens": config.rollout.max_tokens,
        "shares": config.task.shares or (1.0,),
        "shuffle_seed": config.seed,
    }


def cost_facts(config: RunConfig) -> dict[str, Any]:
    """What is known of costs: of all replicas, and of those of each pool."""
    costs = [(pool.name, *pool.cost_model.model_dump().values()) for pool in config.rollout.pools if pool.cost_model]
    found = {} if config.rollout.cost_model is None else config.rollout.cost_model.model_dump()
    return found | ({"pool_costs": costs} if costs else {})


def device_facts(config: RunConfig) -> dict[str, Any]:
    """What a policy may want to know of devices: those that each replica spans, the model's heads, which they divide, the
    trajectories that a replica generates at once, and those of a batch; the trainer's devices, one for each process."""
    pipeline, pools = config.pipeline, replica_pools(config)
    batch = pipeline.prompts_per_replica * pipeline.samples_per_prompt
    found: dict[str, Any] = {
        "tp": pools[0].tp if len(pools) == 1 else tensor_parallel(config.rollout.options),
        "slots": pools[0].replica_batch if len(pools) == 1 else batch,
        "trajectories": pipeline.prompts_per_step * pipeline.samples_per_prompt,
        "trainer_devices": config.trainer.processes,
    }
    path, small = config.model.path, config.model.small
    if path is not None and (path / "config.json").is_file():
        with contextlib.suppress(ValueError, AttributeError):  # a file that is damaged is named with the model
            heads = json.loads((path / "config.json").read_text()).get("num_attention_heads")
            return found | ({"heads": heads} if isinstance(heads, int) else {})
    return found | ({"heads": small.heads} if small is not None else {})
