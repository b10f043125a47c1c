"""The points of Laminar's evaluation: models, scales, and the splits of Table 2."""

from __future__ import annotations

from typing import Any

from tailrace.fleetsim.hardware import model as shape
from tailrace.fleetsim.reproduce import Parameters, Point, Setting
from tailrace.fleetsim.workload.config import WorkloadConfig

PACKAGE = "tailrace.laminar.paper"
PARAMETERS = Parameters(PACKAGE)
value = PARAMETERS.value

BASELINES = ("synchronous", "one-step", "stream", "partial-rollout")
SYSTEMS = ("laminar", *BASELINES)
SCALES = {
    "7B": (16, 32, 64, 128, 256),
    "32B": (32, 64, 128, 256, 512),
    "72B": (64, 128, 256, 512, 1024),
}
GROUPS = 512
SAMPLES = 16

_BARRIER = {
    "7B": (8, 8, 16, 32, 40),
    "32B": (16, 32, 48, 64, 80),
    "72B": (32, 64, 96, 192, 256),
}
TRAINERS = {
    "one-step": _BARRIER,
    "stream": _BARRIER,
    "partial-rollout": {
        "7B": (8, 16, 32, 64, 128),
        "32B": (16, 32, 64, 128, 256),
        "72B": (32, 64, 128, 320, 640),
    },
    "laminar": {
        "7B": (8, 24, 40, 80, 192),
        "32B": (16, 32, 64, 128, 256),
        "72B": (32, 64, 128, 320, 768),
    },
}
"""Number of GPUs that train (Table 2). The others generate; synchronous verl does both on all GPUs."""

PARALLEL = {"7B": 2, "32B": 4, "72B": 8}
"""Tensor parallelism of a replica (Appendix A.3); 7B has 1 for AReaL and Laminar."""

MEGATRON = {"7B": (2, 1), "32B": (4, 2), "72B": (4, 4)}
"""AReaL's tensor and pipeline parallelism in training (Appendix A.3)."""
MICRO_BATCH_TOKENS = 32_768  # AReaL's own default
MINI_BATCHES = 16
LIMIT = 16_384

WHOLE, SHORT = {"steps": 15, "warm_up": 10}, {"steps": 8, "warm_up": 5}
BARRIER_WHOLE, BARRIER_SHORT = {"steps": 7, "warm_up": 2}, {"steps": 5, "warm_up": 2}
"""Number of batches. Systems that generate at most one batch ahead need few to warm up."""


def point(
    system: str, model: str, gpus: int, *, tool: bool = False, quick: bool = False, trainer: int | None = None
) -> Point:
    """A system at a point of Figure 11, or of Figure 12 (`tool`).

    Args:
        system: the system's name.
        model: the model's name.
        gpus: number of GPUs.
        tool: tool calling instead of mathematics.
        quick: simulate fewer batches.
        trainer: number of GPUs that train; None: Table 2's.
    """
    colocated = system == "synchronous"
    if trainer is None and not colocated:
        trainer = TRAINERS[system][model][SCALES[model].index(gpus)]
    parallel = 1 if model == "7B" and system in ("laminar", "partial-rollout") else PARALLEL[model]
    rollout = gpus if trainer is None else gpus - trainer
    replicas = rollout // parallel
    groups = _groups(system, replicas)
    settings: list[Setting] = [
        ("fleet.model", f"Qwen2.5-{model}"),
        ("fleet.trainer.gpus", gpus if trainer is None else trainer),
        ("fleet.rollout.gpus", rollout),
        ("fleet.rollout.tensor_parallel", parallel),
        ("pipeline.prompts_per_replica", groups),
        ("fleet.trainer.optimizer_s", _exposed_s(model)),
        ("fleet.trainer.mfu", value("mfu")),
        ("fleet.rollout.step_s", value("step_s")),
        ("fleet.rollout.prefill_mfu", value("prefill_mfu")),
        ("fleet.workload.correlation", value("correlation")),
        *_lengths("tool" if tool else model),
    ]
    if system == "partial-rollout":
        assert trainer is not None
        settings.append(("pipeline.buffer_prompts", replicas * groups + GROUPS))
        settings.append(("fleet.trainer.mfu", _pipelined_mfu(model, trainer)))
    if tool:
        settings += _environment()
    settings += _batches(system, quick)
    return Point(PACKAGE, system, tuple(settings))


def every(system: str, *, quick: bool) -> dict[tuple[str, int], Point]:
    """A system's fifteen points of Figure 11."""
    return {
        (model, gpus): point(system, model, gpus, quick=quick) for model, scales in SCALES.items() for gpus in scales
    }


def every_tool(system: str, *, quick: bool) -> dict[tuple[str, int], Point]:
    """A system's five points of Figure 12."""
    return {("7B", gpus): point(system, "7B", gpus, tool=True, quick=quick) for gpus in SCALES["7B"]}


def _groups(system: str, replicas: int) -> int:
    """Number of prompts that a replica has at once."""
    even = -(-GROUPS // replicas)
    if system == "partial-rollout":
        return 1024 // SAMPLES  # Appendix A.3
    if system == "laminar":
        return min(1024 // SAMPLES, even)  # the same limit, and the global batch over the replicas (Figure 9)
    return even


def _exposed_s(model: str) -> float:
    """Seconds per mini-batch for gathering and reducing sharded weights that computation does not hide."""
    return round(value("exposed_s_per_gb") * shape(f"Qwen2.5-{model}").weight_bytes / 1e9, 1)


def _pipelined_mfu(model: str, trainer: int) -> float:
    """The MFU of AReaL, which trains with Megatron's pipeline parallelism (Appendix A.3).
    Its stages are idle for (stages - 1) / (micro-batches + stages - 1) of the time, while the pipeline fills and drains.
    """
    parallel, stages = MEGATRON[model]
    tokens = GROUPS * SAMPLES / MINI_BATCHES * mean_tokens(model)
    micro_batches = max(1.0, tokens / (trainer / parallel / stages) / MICRO_BATCH_TOKENS)
    return round(value("mfu") * micro_batches / (micro_batches + stages - 1), 3)


def mean_tokens(model: str) -> float:
    """Mean tokens of a trajectory on a model's mathematics task, including the prompt."""
    settings = [(name.removeprefix("fleet.workload."), number) for name, number in _lengths(model)]
    response: dict[str, Any] = {name.removeprefix("response."): number for name, number in settings}
    found = WorkloadConfig.model_validate({"response": response}).build(0, LIMIT).describe()
    return found.prompt.mean + found.response.mean


def _lengths(workload: str) -> list[Setting]:
    return [(f"fleet.workload.response.{part}", value(f"{workload}.response.{part}")) for part in ("median", "sigma")]


def _environment() -> list[Setting]:
    return [
        ("fleet.rollout.prefix_cached", 0.9),
        ("fleet.workload.environment.calls.preset", "tool-calling"),
        ("fleet.workload.environment.calls.max", 8),
        ("fleet.workload.environment.latency.median", value("tool.latency.median")),
        ("fleet.workload.environment.latency.sigma", value("tool.latency.sigma")),
        ("fleet.workload.environment.latency.cap", 120.0),
    ]


def _batches(system: str, quick: bool) -> list[Setting]:
    if system in ("laminar", "partial-rollout"):
        size = SHORT if quick else WHOLE
    else:
        size = BARRIER_SHORT if quick else BARRIER_WHOLE
    return [("pipeline.steps", size["steps"]), ("fleet.warm_up", size["warm_up"])]
