"""A vLLM of your own takes its weights from a relay: the weight transfer backend `tailrace` (tried with vLLM 0.32).

A replica of a Tailrace run does not use this: its engine is `tailrace.rollout.vllm`.

Installing this package beside vLLM registers the backend in every vLLM process, through the entry point group
`vllm.general_plugins`; elsewhere call `register` before the engine is built. Then:

    llm = LLM(model, weight_transfer_config=WeightTransferConfig(backend="tailrace"))
    llm.init_weight_transfer_engine({"init_info": {"address": relay.address}})
    llm.start_weight_update()
    llm.update_weights({"update_info": {"version": 7, "timeout_s": 30}})
    llm.finish_weight_update(weight_version="7")
    llm.reset_prefix_cache()

The same four calls exist on `AsyncLLM` and over HTTP. The token comes from TAILRACE_RELAY_TOKEN or the init info.
"""

from __future__ import annotations

BACKEND = "tailrace"
_registered = False


def register() -> None:
    """Make the backend known to vLLM in this process; more than once is fine.

    Raises:
        ValueError: another plugin took the name `tailrace`.
    """
    global _registered  # noqa: PLW0603, RUF100  once for a process, as vLLM's registry is
    if _registered:
        return
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    WeightTransferEngineFactory.register_engine(
        BACKEND, "tailrace.paramserver.bridges.vllm_engine", "RelayWeightTransferEngine"
    )
    _registered = True
