"""The points of RollPacker's evaluation: models with their limits, tasks, and the system with and without its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tailrace.fleetsim.reproduce import Parameters, Point, Setting, Toml

PACKAGE = "tailrace.rollpacker.paper"
PARAMETERS = Parameters(PACKAGE)
value = PARAMETERS.value

VERL, ROLLPACKER, ONE_STEP = "rollpacker-synchronous", "rollpacker", "rollpacker-one-step"
KINDS = ("code", "math", "judge")
TRAINING = tuple(f"fleet.trainer.{dimension}_parallel" for dimension in ("tensor", "pipeline", "context"))
PROMPTS, SAMPLES, FACTOR = 128, 8, 1.25
FIXED_S = {"code": 30.0, "math": 2.0, "judge": 60.0}
LEAST_S = 2.0
CELLS = 2
"""Cells of the trainer; one of them can train on the half of the devices that is lent."""
RESIZE_S = 1.0
"""Seconds to start a replica on another number of devices: "negligible" (section 4.2), less than a version's resharding."""
NEVER = 1e-9
"""Weight of a kind that is not drawn. Each kind has a pool, so all of them stand in the table."""

PERIODS, SHORT_PERIODS = 4, 2
PERIOD = 5  # at factors of 1.25 four short rounds and a long one


@dataclass(frozen=True, slots=True)
class Section6Model:
    """A model of section 6.

    Args:
        shape: its name.
        gpus: devices.
        parallel: tensor parallelism of a replica.
        limit: most tokens of a response.
        training: tensor, pipeline and context parallelism of the trainer.
    """

    shape: str
    gpus: int
    parallel: int
    limit: int
    training: tuple[int, int, int]


MODELS = {
    "7B": Section6Model("Qwen2.5-7B", 16, 1, 8192, (2, 1, 1)),
    "14B": Section6Model("Qwen2.5-14B", 32, 2, 16384, (2, 2, 2)),
    "32B": Section6Model("Qwen2.5-32B", 64, 2, 32768, (4, 1, 4)),
}
PRESSURE = Section6Model("Qwen3-8B", 8, 1, 32768, (2, 1, 1))
"""Section 4.2: a model that thinks for long, on devices whose KV caches it fills."""


def point(
    system: str,
    model: str | Section6Model,
    *,
    quick: bool,
    kind: str | None = None,
    prompts: int = PROMPTS,
    gpus: int = 0,
) -> Point:
    """A system at a point of the evaluation.

    Args:
        system: the system's name.
        model: the model, or its name.
        quick: simulate fewer steps.
        kind: the only kind of tasks; None: a uniform mix of all.
        prompts: prompts of a step.
        gpus: devices; 0: the model's.
    """
    at = MODELS[model] if isinstance(model, str) else model
    devices = gpus or at.gpus
    settings: list[Setting] = [
        ("fleet.model", at.shape),
        ("fleet.trainer.gpus", devices),
        ("fleet.rollout.gpus", devices),
        ("fleet.rollout.tensor_parallel", at.parallel),
        ("rollout.max_tokens", at.limit),
        ("pipeline.prompts_per_step", prompts),
        ("pipeline.prompts_per_replica", groups_at_once(prompts, devices // at.parallel, system)),
        *_lengths(at),
        *_costs(),
        *zip(TRAINING, at.training, strict=True),
        ("fleet.workload.scoring", _scoring(kind)),
        ("pipeline.steps", PERIOD * (SHORT_PERIODS if quick else PERIODS)),
        ("fleet.warm_up", 0),
    ]
    if system == ROLLPACKER:
        settings += [
            ("pipeline.provisioning.max_tokens", at.limit),
            ("pipeline.provisioning.short", at.parallel),
            ("pipeline.provisioning.long", at.parallel),
        ]
    return Point(PACKAGE, system, tuple(settings), probe="steps")


def groups_at_once(prompts: int, replicas: int, system: str) -> int:
    """Groups that a replica may have at once: an even share of what a round launches, and of four replicas made one."""
    launched = prompts if system == VERL else 4 * 1.5 * prompts
    return -(-int(launched) // replicas)


def tail_batched(at: Point, prompt_factor: float = FACTOR, sample_factor: float = FACTOR) -> Point:
    """A point with tail batching, whatever it had."""
    return at.over(
        pipeline__batching__name="tail-batching",
        pipeline__batching__prompt_factor=prompt_factor,
        pipeline__batching__sample_factor=sample_factor,
        pipeline__batching__redraw="fresh",
        pipeline__prompts_per_replica=_setting(at, "pipeline.prompts_per_replica") * 8,
    )


def staged_scores(at: Point) -> Point:
    """Score after the last response, with fixed timeouts."""
    staged: dict[str, Any] = {f"fleet__scoring__{kind}__at_step_end": True for kind in KINDS}
    return at.over(**staged, fleet__scoring__code__min_timeout_s=FIXED_S["code"])


def fixed_timeouts(at: Point) -> Point:
    """The point with a timeout of 30 s for every program."""
    return at.over(fleet__scoring__code__min_timeout_s=FIXED_S["code"])


def _setting(at: Point, key: str) -> int:
    found = dict(at.settings)[key]
    assert isinstance(found, int)
    return found


def _scoring(kind: str | None) -> Toml:
    weights = {name: 1.0 if kind in (None, name) else NEVER for name in KINDS}
    kinds = {
        "code": "median = 1.0, sigma = 0.8, correlation = 0.7, endless = 0.05, references = true",
        "math": f"median = {value('math.median')}",
        "judge": f"median = {value('judge.median')}, sigma = 0.3",
    }
    rows = [f'{{ kind = "{name}", {times}, weight = {weights[name]} }}' for name, times in kinds.items()]
    return Toml(f"[{', '.join(rows)}]")


def _lengths(model: Section6Model) -> list[Setting]:
    if model.shape == PRESSURE.shape:
        return pressure()
    return [
        ("fleet.workload.response.median", value("response.median")),
        ("fleet.workload.response.sigma", value(f"{model.limit // 1024}k.response.sigma")),
        ("fleet.workload.correlation", value("correlation")),
    ]


def pressure(scale: float = 1.0) -> list[Setting]:
    """The lengths that fill KV caches (section 4.2), under a limit of 32k, and the memory that there is for them."""
    return [
        ("fleet.rollout.memory_share", value("pressure.memory_share")),
        ("fleet.workload.response.median", scale * value("pressure.response.median")),
        ("fleet.workload.response.sigma", value("pressure.response.sigma")),
        ("fleet.workload.correlation", value("pressure.correlation")),
    ]


def _costs() -> list[Setting]:
    return [
        ("fleet.rollout.step_s", value("step_s")),
        ("fleet.trainer.layer_s", value("layer_s")),
        ("fleet.scoring.code.workers", int(value("code.workers"))),
    ]


def parts(model: str, *, quick: bool) -> list[Point]:
    """RollPacker with its parts one after the other (Table 2): tail batching, reward scheduler, planner, stream trainer."""
    whole = point(ROLLPACKER, model, quick=quick)
    scored = without_stream(whole)
    return [staged_scores(scored), scored, planned(scored), whole]


def left_out(model: str, *, quick: bool) -> dict[str, Point]:
    """RollPacker without each of its mechanisms, by the mechanism: the same systems as `configs/rollpacker/without-*.toml`."""
    whole = point(ROLLPACKER, model, quick=quick)
    return {
        "tail-batching": whole.over(pipeline__batching__prompt_factor=1.0, pipeline__batching__sample_factor=1.0),
        "reward-scheduler": fixed_timeouts(whole),
        "parallelism-planner": scaled_down(whole),
        "stream-trainer": planned(without_stream(whole)),
        "scale-down": planned(whole),
        "sample-factor": whole.over(pipeline__batching__sample_factor=1.0),
    }


def rlhfuse(model: str, *, quick: bool, adaptive: bool = False) -> Point:
    """RLHFuse as it was strengthened: scores as responses finish, and the stream trainer (section 6.1).

    It has no planner. Each batch is a round of all its prompts, without speculation, since devices are lent within rounds.

    Args:
        model: the model's name.
        quick: simulate fewer steps.
        adaptive: whether "asynchronous reward computation" means the reward scheduler's adaptive timeouts too.
    """
    whole = point(ROLLPACKER, model, quick=quick)
    whole = scaled_down(whole if adaptive else fixed_timeouts(whole))
    return whole.over(pipeline__batching__prompt_factor=1.0, pipeline__batching__sample_factor=1.0)


def one_off(*, quick: bool) -> Point:
    """RollPacker one step ahead (section 6.7). The trainer has devices of its own, so nothing is lent."""
    ahead = point(ROLLPACKER, MODELS["7B"], quick=quick, prompts=32, gpus=8)
    return ahead.over(
        pipeline__admission="one-step",
        pipeline__provisioning__name="static",
        trainer__colocated=False,
        fleet__placement="split",
        fleet__trainer__gpus=8,
        fleet__rollout__gpus=8,
    )


def planned(at: Point) -> Point:
    """A point whose replicas change their tensor parallelism with their preemptions.

    Both kinds of rounds begin with the point's own: what the planner's profile found best is the paper's configuration
    (section 6: 1, 2 and 2), and section 6.4 says with which size its runs begin.
    """
    size = _setting(at, "fleet.rollout.tensor_parallel")
    return at.over(
        pipeline__provisioning__name="adaptive-tp",
        pipeline__provisioning__short=size,
        pipeline__provisioning__long=size,
        fleet__rollout__resize_s=RESIZE_S,
    )


def scaled_down(at: Point, trigger: float | None = None) -> Point:
    """A point that lends half of its devices to the trainer in each round.

    Args:
        at: the point.
        trigger: the only share of the round's samples at which it looks; None: every 5 % from 20 to 50 %.
    """
    settings: dict[str, Any] = {} if trigger is None else {"first": trigger, "last": trigger}
    named = {f"pipeline__provisioning__{name}": value for name, value in settings.items()}
    return at.over(
        pipeline__training="streamed",
        trainer__cells=CELLS,
        pipeline__provisioning__name="scale-down",
        pipeline__provisioning__max_tokens=_setting(at, "rollout.max_tokens"),
        **named,
    )


def single_fetch(at: Point, share: float) -> Point:
    """A point whose trainer fetches complete groups once in a round, at most a share of the batch (section 6.6, Table 4)."""
    return at.over(pipeline__training=Toml(f'{{ name = "single-fetch", share = {share} }}'))


def without_scale_down(at: Point) -> Point:
    """A point whose devices never change hands: gradients are streamed, and wait for the round's end."""
    return at.over(pipeline__provisioning__name="static")


def without_stream(at: Point) -> Point:
    """A point that trains on whole batches, on devices that never change hands."""
    return without_scale_down(at).over(pipeline__training="full-batch")
