"""How the baselines spend their time: idle devices, shares of an iteration, repeated prefill (sections 2.2 and 2.3)."""

from __future__ import annotations

import statistics

from tailrace.fleetsim.reproduce import Found, TargetMeasure
from tailrace.fleetsim.results.result import Result
from tailrace.laminar.paper.points import SCALES, TRAINERS, every, point


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of sections 2.2 and 2.3."""
    synchronous = list(every("synchronous", quick=quick).values())
    partial = list(every("partial-rollout", quick=quick).values())
    largest = {
        name: [point(name, model, scales[-1], quick=quick) for model, scales in SCALES.items()] for name in _NAMES
    }
    return {
        "LAM-IDLE-sync": TargetMeasure(largest["synchronous"], lambda lab: [_most_idle(lab, "synchronous", quick)]),
        "LAM-IDLE-onestep": TargetMeasure(largest["one-step"], lambda lab: [_most_idle(lab, "one-step", quick)]),
        "LAM-GENSHARE": TargetMeasure(
            synchronous, lambda lab: [max(_generation(lab[each].result) for each in synchronous)]
        ),
        "LAM-EXPPREP": TargetMeasure(
            synchronous, lambda lab: [statistics.fmean(lab[each].result.preparation_share for each in synchronous)]
        ),
        "LAM-REPREFILL": TargetMeasure(
            partial, lambda lab: [statistics.fmean(lab[each].result.prefill_share for each in partial)]
        ),
    }


_NAMES = ("synchronous", "one-step")


def idle(result: Result, trainer_share: float, rollout_share: float) -> float:
    """Share of all devices' time in which they neither train nor generate."""
    busy = result.utilisation
    return 1.0 - busy["trainer"] * trainer_share - busy["replica"] * rollout_share


def _most_idle(found: Found, system: str, quick: bool) -> float:
    most = 0.0
    for model, scales in SCALES.items():
        trains = 1.0 if system == "synchronous" else TRAINERS[system][model][-1] / scales[-1]
        generates = 1.0 if system == "synchronous" else 1.0 - trains
        most = max(most, idle(found[point(system, model, scales[-1], quick=quick)].result, trains, generates))
    return most


def _generation(result: Result) -> float:
    """Generation's share of a synchronous iteration: the time without training and moving weights."""
    return 1.0 - result.utilisation["trainer"] - (result.stall_s + result.pull_mean_s) / result.step_s
