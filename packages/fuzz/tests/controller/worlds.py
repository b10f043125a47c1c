"""Random worlds for the controller: a fuzz case, with another policy or quantity of its pipeline where a test wants it so.

Every invariant of fuzzing is checked in them. Without --deep a part of the seeds is played; --deep and `TAILRACE_WORLDS`
multiply their number. A failure names its seed.
"""

import dataclasses
import math
import os

from tailrace.contracts.plugins import load
from tailrace.fuzz.case import Case
from tailrace.fuzz.draw import draw_case
from tailrace.fuzz.faults import BreakKind
from tailrace.fuzz.trial import FuzzSimulation

WORLDS = float(os.environ.get("TAILRACE_WORLDS", "1"))
COST = {"k1": 2e-5, "k2": 1e-3, "k3": 1e-4, "k4": 2e-3}


def policy(axis, name, **options):
    return load(f"tailrace.{axis}", name)(**options)


def world(seed, *, spec=None, pipeline=None, **fields):
    """A world of a seed.

    Args:
        spec: changes of the pipeline's spec, or a function from the case's own to them.
        pipeline: changes of the case's pipeline.
        fields: changes of the case.
    """
    drawn = draw_case(seed)
    made = {name: getattr(drawn, name) for name in Case.model_fields} | fields
    if pipeline is not None:
        drawn_of = {**drawn.pipeline.model_dump(), "eviction": None}  # which goes with some syncs and buffers alone
        made["pipeline"] = type(drawn.pipeline).model_validate({**drawn_of, **pipeline})

    class Varied(Case):
        def spec(self, *policies):
            own = super().spec(*policies)
            return dataclasses.replace(own, **(spec(own) if callable(spec) else spec or {}))

    return FuzzSimulation(Varied.model_construct(**made))


def without(case, *kinds):
    """The faults of a case but those of some kinds."""
    return tuple(fault for fault in case.faults if fault.kind not in kinds)


def play(seed, played, *, first=None, gives_up=False):
    """Run a world to its end.

    Args:
        first: the first event, where it goes on.
        gives_up: whether it may end without success.
    """
    try:
        played.run(first)
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
    controller = played.simulation.controller
    assert controller.over, f"seed {seed}: no end"
    assert gives_up or controller.finished, f"seed {seed}: {controller.failure}"
    return controller


def seeds(count, *, first=0, fits=lambda case: True):
    """The first seeds whose cases fit."""
    found = (seed for seed in range(first, first + 100_000) if fits(draw_case(seed)))
    return [next(found) for _ in range(math.ceil(count * WORLDS))]


def expected(count):
    """How often something happens at least in the worlds that are played, if it does so often in as many as a test names."""
    return math.floor(count * min(1.0, WORLDS))


def patient(case):
    """Whether recovery never gives up, and nothing is so broken that the run must."""
    options = case.pipeline.recovery.options
    broken = {BreakKind.TORN_PULL, BreakKind.WRONG_LOAD, BreakKind.DAMAGED_CHECKPOINT}
    return (
        min(options.values(), default=0) > 100
        and case.failed_groups_limit > 100
        and not broken & {fault.kind for fault in case.faults}
    )
