"""The points of StreamRL's evaluation: models, lengths, and the system with and without its parts (section 7)."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tailrace.fleetsim.fleet.stage_times import DeviceShare, StageTimes
from tailrace.fleetsim.reproduce import Parameters, Point, Setting, Toml

PACKAGE = "tailrace.streamrl.paper"
PARAMETERS = Parameters(PACKAGE)
value = PARAMETERS.value

COLOCATED, SYNC, ASYNC = "streamrl-colocated", "streamrl-sync", "streamrl-async"
FREE, ACROSS = "streamrl", "streamrl-across"
LONGEST = 20_000
LENGTHS = {"5K": 0.25, "10K": 0.5, "20K": 1.0}
"""Lengths are scaled down by two and four (section 7, settings)."""

FAR = 32
"""H20 of the cloud (section 7, testbed)."""

GROUPS = 512
STEPS, WARM_UP = (32, 16), (12, 8)
"""Steps of a whole run, of which 20 are measured as in the paper, and of a quick one; those of their warm-ups.

Before its first update an asynchronous run generates two batches, and the trainer takes many steps to work that off.
"""

TOKENS_AT_ONCE = 2_048
"""Tokens for each of the trainer's devices that saturate it."""


@dataclass(frozen=True, slots=True)
class Section7Model:
    """A model of section 7.

    Args:
        shape: its name.
        gpus: devices. The paper says so of 7B (sections 7.2 and 7.3); 72B has the whole cluster, 32B half of it: assumed.
        unit: devices that change stages together: the largest replica.
    """

    shape: str
    gpus: int
    unit: int


MODELS = {
    "7B": Section7Model("Qwen2.5-7B", 32, 4),
    "32B": Section7Model("Qwen2.5-32B", 64, 8),
    "72B": Section7Model("Qwen2.5-72B", 128, 8),
}


def colocated(model: str, length: str, *, quick: bool, routing: str = "round-robin") -> Point:
    """All devices generate and train in turn, with the replicas that generate a batch soonest."""
    at = MODELS[model]
    asked = _at(COLOCATED, model, length, quick=quick).over(pipeline__routing=routing)
    size = times(asked).generation(at.gpus).tensor_parallel
    even = GROUPS * size // at.gpus
    return asked.over(
        fleet__trainer__gpus=at.gpus,
        fleet__rollout__gpus=at.gpus,
        fleet__rollout__tensor_parallel=size,
        pipeline__prompts_per_replica=even if routing == "round-robin" else GROUPS,
    )


def synchronous(model: str, length: str, *, quick: bool) -> Point:
    """StreamRL-Sync, with the devices of each stage that give the least pipelined makespan."""
    asked = _at(SYNC, model, length, quick=quick)
    return shared(asked, times(asked).share(MODELS[model].gpus, unit=MODELS[model].unit, streamed=True))


def asynchronous(model: str, length: str, *, quick: bool) -> Point:
    """StreamRL-Async, with the devices of each stage that Algorithm 1 finds."""
    asked = _at(ASYNC, model, length, quick=quick)
    return shared(asked, times(asked).share(MODELS[model].gpus, unit=MODELS[model].unit))


def free(model: str, length: str, *, quick: bool) -> Point:
    """The point without any barrier, on the devices of `asynchronous`; a replica has at most twice an even share of a batch."""
    found = times(_at(ASYNC, model, length, quick=quick)).share(MODELS[model].gpus, unit=MODELS[model].unit)
    at = shared(_at(FREE, model, length, quick=quick), found)
    return at.over(pipeline__prompts_per_replica=-(-2 * GROUPS * found.tensor_parallel // found.generate))


def evenly_split(model: str, length: str, *, quick: bool) -> Point:
    """StreamRL-Async with half of the devices for each stage."""
    asked = _at(ASYNC, model, length, quick=quick)
    half = MODELS[model].gpus // 2
    return shared(asked, DeviceShare(half, half, times(asked).generation(half).tensor_parallel, 0.0))


def across(model: str, length: str, *, quick: bool) -> Point:
    """A model that generates on 32 H20 in another datacenter, and trains on as many of its H800 as keep up (Algorithm 1)."""
    asked, home = _at(ACROSS, model, length, quick=quick), MODELS[model]
    return shared(asked, times(asked).share_across(FAR, home.gpus, unit=home.unit))


@functools.cache
def times(asked: Point) -> StageTimes:
    """The stages of a point whose devices are not chosen yet."""
    return StageTimes(asked.config())


def shared(asked: Point, found: DeviceShare) -> Point:
    """A point with the devices of each stage."""
    return asked.over(
        fleet__trainer__gpus=found.train,
        fleet__rollout__gpus=found.generate,
        fleet__rollout__tensor_parallel=found.tensor_parallel,
        pipeline__training__tokens=TOKENS_AT_ONCE * found.train,
    )


def _at(system: str, model: str, length: str, *, quick: bool) -> Point:
    scale, median = LENGTHS[length], value("response.median")
    settings: list[Setting] = [
        ("fleet.model", MODELS[model].shape),
        ("rollout.max_tokens", round(LONGEST * scale)),
        ("fleet.workload.response", Toml(f"[{{ median = {median * scale}, sigma = {value('response.sigma')} }}]")),
        ("fleet.workload.prompt.median", value("prompt.median")),
        ("fleet.trainer.mfu", value("train.mfu")),
        ("fleet.rollout.step_s", value("step_s")),
        ("pipeline.steps", STEPS[quick]),
        ("fleet.warm_up", WARM_UP[quick]),
    ]
    return Point(PACKAGE, system, tuple(settings), probe="steps")
