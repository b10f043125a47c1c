"""The points of StaleFlow's evaluation: four models, their limits, bounds and splits."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.fleetsim.reproduce import Parameters, Point, Setting

PACKAGE = "tailrace.staleflow.paper"
PARAMETERS = Parameters(PACKAGE)
value = PARAMETERS.value

SYNCHRONOUS, ONE_STEP, ASYNC = "staleflow-synchronous", "staleflow-one-step", "in-flight-cap"
SYSTEMS = ("staleflow", SYNCHRONOUS, ONE_STEP, ASYNC)
BOUNDS = (1, 2, 3)
NODE = 8


@dataclass(frozen=True, slots=True)
class Table2Model:
    """A model of Table 2.

    Args:
        shape: the model's name.
        gpus: number of GPUs.
        parallel: tensor parallelism of a replica.
        trainers: GPUs that train, by system: the fastest in a search that is the same for all (calibrate_fleetsim.py).
    """

    shape: str
    gpus: int
    parallel: int
    trainers: tuple[int, int, int]  # staleflow, one-step, in-flight-cap


MODELS = {
    "r1-14b": Table2Model("Qwen2.5-14B", 64, 2, (32, 32, 32)),
    "r1-32b": Table2Model("Qwen2.5-32B", 128, 4, (80, 64, 80)),
    "base-32b": Table2Model("Qwen2.5-32B", 128, 4, (80, 48, 80)),
    "base-30b-a3b": Table2Model("Qwen3-30B-A3B", 128, 1, (64, 32, 64)),
}


def point(
    system: str,
    model: str,
    bound: int = 1,
    *,
    quick: bool = False,
    cap: int = 20_480,
    groups: int = 128,
    gpus: int | None = None,
    trainer: int | None = None,
) -> Point:
    """A system at a point of Figure 13, or of Figure 15.

    Args:
        system: the system's name.
        model: the model's name.
        bound: the bound on staleness.
        quick: simulate fewer batches for systems with a barrier. With a bound all are needed: with four batches instead of
            six, StaleFlow falls behind VeRL-Async at points where it is ahead.
        cap: most tokens of a response.
        groups: prompts in a batch.
        gpus: number of GPUs; None: the model's.
        trainer: number of GPUs that train; None: the model's.
    """
    known = MODELS[model]
    total = gpus or known.gpus
    settings: list[Setting] = [
        ("fleet.model", known.shape),
        ("fleet.rollout.tensor_parallel", known.parallel),
        ("rollout.max_tokens", cap),
        ("pipeline.prompts_per_step", groups),
        *_efficiency(model),
        *_lengths(model),
    ]
    if system == SYNCHRONOUS:
        trains = generates = total
    else:
        place = ("staleflow", ONE_STEP, ASYNC).index(system)
        trains = trainer or max(NODE, round(known.trainers[place] * total / known.gpus / NODE) * NODE)
        generates = total - trains
    settings += [("fleet.trainer.gpus", trains), ("fleet.rollout.gpus", generates)]
    replicas = generates // known.parallel
    if system in ("staleflow", ASYNC):
        settings.append(("pipeline.admission.bound", bound))
        settings.append(("pipeline.prompts_per_replica", 64))
    else:
        settings.append(("pipeline.prompts_per_replica", -(-groups // replicas)))
    if system in (SYNCHRONOUS, ONE_STEP):
        settings += [("pipeline.steps", 5 if quick else 7), ("fleet.warm_up", 2)]
    return Point(PACKAGE, system, tuple(settings))


def detailed(system: str = "staleflow") -> Point:
    """The point of section 6.5, which is also that of the table."""
    settings = [*_lengths("base-30b-a3b"), *_efficiency("base-30b-a3b")]
    return Point(PACKAGE, system, tuple(settings))


def _efficiency(model: str) -> list[Setting]:
    kind = "moe" if "a3b" in model else "dense"
    return [
        ("fleet.trainer.mfu", value(f"mfu.{kind}")),
        ("fleet.rollout.prefill_mfu", value(f"prefill_mfu.{kind}")),
        ("fleet.delays.route_s", value("route_s")),
    ]


def _lengths(model: str) -> list[Setting]:
    family = model if model == "base-30b-a3b" else ("r1" if model.startswith("r1") else "base-32b")
    keys = ("response.median", "response.sigma", "correlation")
    return [(f"fleet.workload.{key}", value(f"{family}.{key}")) for key in keys]
