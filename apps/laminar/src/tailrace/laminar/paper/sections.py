"""The measures of all sections but those on speed: idle devices, weights, staleness, repacking, failures, the best split."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tailrace.fleetsim.cost import WeightCost
from tailrace.fleetsim.hardware import device, model
from tailrace.fleetsim.host.recorder import BatchRow
from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure
from tailrace.fleetsim.reproduce.targets import Value
from tailrace.fleetsim.results.result import Result
from tailrace.laminar.paper.points import PARALLEL, SCALES, TRAINERS, every, point


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of these sections' targets, by the target's id."""
    found: dict[str, TargetMeasure] = {}
    for part in (
        idle_measures,
        weight_measures,
        staleness_measures,
        repacking_measures,
        failure_measures,
        split_measures,
    ):
        found |= part(quick=quick)
    return found


# How the baselines spend their time: idle devices, shares of an iteration, repeated prefill (sections 2.2 and 2.3).


def idle_measures(*, quick: bool) -> dict[str, TargetMeasure]:
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
    for name, scales in SCALES.items():
        trains = 1.0 if system == "synchronous" else TRAINERS[system][name][-1] / scales[-1]
        generates = 1.0 if system == "synchronous" else 1.0 - trains
        most = max(most, idle(found[point(system, name, scales[-1], quick=quick)].result, trains, generates))
    return most


def _generation(result: Result) -> float:
    """Generation's share of a synchronous iteration: the time without training and moving weights."""
    return 1.0 - result.utilisation["trainer"] - (result.stall_s + result.pull_mean_s) / result.step_s


# Weights: broadcast, stall and waiting (sections 4.2 and 8.3, Appendix C).

RELAYS = 128


def weight_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of sections 4.2 and 8.3."""
    laminar = every("laminar", quick=quick)
    even = [
        (name, gpus)
        for name, scales in SCALES.items()
        for place, gpus in enumerate(scales)
        if name != "7B" and gpus >= 64 and 2 * TRAINERS["laminar"][name][place] == gpus
    ]
    stalls = {name: [laminar[name, gpus] for gpus in scales] for name, scales in SCALES.items()}
    return {
        "LAM-BCAST": TargetMeasure((), lambda _: [cost("72B").broadcast_s(RELAYS)]),
        "LAM-BCAST-flat": TargetMeasure((), lambda _: [cost("72B").broadcast_s(RELAYS) / cost("72B").broadcast_s(2)]),
        "LAM-STALL-32": TargetMeasure([laminar["32B", 128]], lambda lab: [lab[laminar["32B", 128]].result.stall_s]),
        "LAM-STALL-72": TargetMeasure([laminar["72B", 128]], lambda lab: [lab[laminar["72B", 128]].result.stall_s]),
        "LAM-STALL-const": TargetMeasure(
            [each for points in stalls.values() for each in points],
            lambda lab: [all(len({lab[each].result.stall_s for each in points}) == 1 for points in stalls.values())],
        ),
        "LAM-WAIT-avg": TargetMeasure(
            [laminar[where] for where in even],
            lambda lab: [max(1 - lab[laminar[where]].result.pull_mean_s / _global_s(*where) for where in even)],
        ),
        "LAM-WAIT-best": TargetMeasure(
            (), lambda _: [max(1 - cost(name).pull_s() / _global_s(name, gpus) for name, gpus in even)]
        ),
    }


def cost(name: str) -> WeightCost:
    """The cost of moving a model's weights in the paper's testbed."""
    return WeightCost.of(model(f"Qwen2.5-{name}"), device("H800"), PARALLEL[name])


def _global_s(name: str, gpus: int) -> float:
    """Seconds of a global synchronisation with equally many trainer and rollout devices (Figure 14)."""
    return cost(name).global_sync_s(gpus // 2, gpus // 2)


# Inherent staleness, and one version for each trajectory (sections 2.4 and 6).

LEAST_AT_ONE = 0.95


def staleness_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of sections 2.4, 6 and 8.1."""
    laminar = list(every("laminar", quick=quick).values())
    figure_10 = point("laminar", "7B", 64, quick=quick)
    moves = point("laminar", "32B", 128, quick=quick).over(probe="moves")
    return {
        "LAM-STALE-typ": TargetMeasure([figure_10], lambda lab: [_share_under(lab[figure_10].completed_staleness)]),
        "LAM-STALE-max": TargetMeasure(
            laminar, lambda lab: [max(max(lab[each].completed_staleness) for each in laminar)]
        ),
        "LAM-SINGLEVER": TargetMeasure(
            [moves], lambda lab: [lab[moves].versions_mixed == 0 and lab[moves].result.lost_trajectories == 0]
        ),
    }


def _share_under(staleness: dict[int, int]) -> float:
    """The least number such that the staleness of 95 % of trajectories is below it."""
    total, below = sum(staleness.values()), 0
    for lag, count in sorted(staleness.items()):
        below += count
        if below >= LEAST_AT_ONE * total:
            return lag + 1
    return 0


# Repacking on and off, 32B on 128 GPUs (section 8.4, Table 1).


def repacking_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of section 8.4's targets."""
    on = point("laminar", "32B", 128, quick=quick).over(probe="moves")
    off = point("laminar", "32B", 128, quick=quick).over(pipeline__relocation="none")
    both = (on, off)

    def kv(found: Found, *which: int) -> list[Value]:
        return [found[both[index]].result.kv_share for index in which]

    def ratio(found: Found, name: str) -> float:
        first, second = (getattr(found[each].result, name) for each in both)
        return float(first / second)

    return {
        "LAM-REPACK-tput": TargetMeasure(both, lambda lab: [ratio(lab, "generated_tokens_per_s") - 1]),
        "LAM-REPACK-kv-on": TargetMeasure([on], lambda lab: kv(lab, 0)),
        "LAM-REPACK-kv-off": TargetMeasure([off], lambda lab: kv(lab, 1)),
        "LAM-REPACK-kv-rel": TargetMeasure(both, lambda lab: [ratio(lab, "kv_share") - 1]),
        "LAM-REPACK-lat-on": TargetMeasure(
            [on], lambda lab: [lab[on].result.latency_mean_s, lab[on].result.latency_max_s]
        ),
        "LAM-REPACK-lat-off": TargetMeasure(
            [off], lambda lab: [lab[off].result.latency_mean_s, lab[off].result.latency_max_s]
        ),
        "LAM-REPACK-neutral": TargetMeasure(both, lambda lab: [ratio(lab, "latency_max_s")]),
        "LAM-REPACK-ovh": TargetMeasure([on], lambda lab: [statistics.fmean(lab[on].overheads_s or [0.0])]),
        "LAM-DATAPLANE": TargetMeasure([], lambda _: [_data_s(on.config().fleet)]),
    }


def _data_s(fleet: dict[str, dict[str, float]]) -> float:
    return fleet["trainer"]["data_s"]


# A machine with two replicas dies, 32B on 128 GPUs (section 8.5, Figure 16).

MOST_LOST = 0.15
KILLED_AT_STEP = 2  # counted among the measured steps
AFTER = 3  # batches after the recovery, in which generation is as fast as before


def failure_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of section 8.5's targets."""
    healthy = point("laminar", "32B", 128, quick=quick)
    batches = dict(healthy.settings)
    step = int(str(batches["fleet.warm_up"])) + KILLED_AT_STEP
    longer = healthy.over(pipeline__steps=step + 1 + AFTER)
    killed = longer.over(faults=(f"replica:0@step{step}", f"replica:1@step{step}"))
    return {
        "LAM-RECOVER": TargetMeasure([killed], lambda lab: [lab[killed].recovered_s]),
        "LAM-RECOVER-train": TargetMeasure([longer, killed], lambda lab: [_unharmed(lab, longer, killed, step)]),
    }


def _unharmed(found: Found, healthy: Point, killed: Point, step: int) -> bool:
    """Whether training during the outage and generation over the whole run match the same run without the outage."""
    with_, without = found[killed].result, found[healthy].result
    lost = 1 - _tokens_per_s(with_.batches[step - 1 : step + 1]) / _tokens_per_s(without.batches[step - 1 : step + 1])
    back = _tokens_per_s(with_.batches[step:]) / _tokens_per_s(without.batches[step:])
    return lost < MOST_LOST and back > 1 - MOST_LOST


def _tokens_per_s(batches: Sequence[BatchRow]) -> float:
    return sum(batch.tokens for batch in batches[1:]) / (batches[-1].at_s - batches[0].at_s)


# Compares the best split of the devices for Laminar with that of Table 2.

NODE = 8
FARTHER = 4
"""Candidates are the paper's split, its neighbours by a node, and those some nodes or a quarter of the devices away. If a
farther one is the fastest, the best split is not within a node of the paper's."""


def split_measures(*, quick: bool) -> dict[str, TargetMeasure]:  # noqa: ARG001  searches are short in any case
    """The measure of Table 2's target."""
    searches = [_candidates(model, gpus) for model, scales in SCALES.items() for gpus in scales]
    return {
        "LAM-TABLE2": TargetMeasure(
            [each for search in searches for each in search.values()],
            lambda lab: [sum(_agrees(lab, search) for search in searches) / len(searches)],
        )
    }


def _candidates(model: str, gpus: int) -> dict[int, Point]:
    """Points by their distance in nodes from the paper's split."""
    paper = TRAINERS["laminar"][model][SCALES[model].index(gpus)]
    far = max(2, gpus // NODE // FARTHER)
    found = {}
    for away in (-far, -1, 0, 1, far):
        trainer = paper + away * NODE
        if 0 < trainer < gpus and trainer >= TRAINERS["laminar"][model][0]:
            found[away] = point("laminar", model, gpus, quick=True, trainer=trainer)
    return found


def _agrees(found: Found, search: dict[int, Point]) -> bool:
    best = max(search, key=lambda away: found[search[away]].result.tokens_per_s)
    return abs(best) <= 1
