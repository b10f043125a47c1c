"""The checkpoint engine `tailrace` for verl (written against verl 0.9.1). Only verl imports this file.

In the configuration of a run, with TAILRACE_RELAY_TOKEN in the environment of every worker:

    actor_rollout_ref.rollout.checkpoint_engine.backend=tailrace
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=tailrace.paramserver.bridges.verl

What it does, and its settings (`engine_kwargs.tailrace`), are in `verl_engine`.
"""

from __future__ import annotations

from verl.checkpoint_engine.base import (  # type: ignore[import-not-found, unused-ignore]
    CheckpointEngineRegistry,
    CheckpointEngineWithCache,
)

from tailrace.paramserver.bridges.verl_engine import BACKEND, RelayCheckpointEngine


@CheckpointEngineRegistry.register(BACKEND)
class TailraceCheckpointEngine(RelayCheckpointEngine, CheckpointEngineWithCache):  # type: ignore[misc, unused-ignore]
    """`RelayCheckpointEngine` as verl knows its engines."""
