"""Throughput at the points of Figures 11 and 12: speed-ups, scaling, orders."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from tailrace.fleetsim.reproduce import Found, OrderStatement, Point, TargetMeasure
from tailrace.laminar.paper.points import BASELINES, SCALES, SYSTEMS, every, every_tool

Where = tuple[str, int]
NAMES = {"synchronous": "verl", "one-step": "one-step", "stream": "stream generation", "partial-rollout": "AReaL"}
SMALL = 64


class Speeds:
    """Throughput of all systems on one task.

    Args:
        points: the points of each system, by model and GPUs.
    """

    def __init__(self, points: Mapping[str, Mapping[Where, Point]]) -> None:
        self.points = points

    @classmethod
    def of_task(cls, *, tool: bool, quick: bool) -> Speeds:
        """The speeds on mathematics, or on tool calling."""
        chosen = every_tool if tool else every
        return cls({system: chosen(system, quick=quick) for system in SYSTEMS})

    def needed(self, *systems: str) -> list[Point]:
        """The points of these systems; of all systems if none is named."""
        return [point for system in systems or SYSTEMS for point in self.points[system].values()]

    def over(self, found: Found, baseline: str) -> dict[Where, float]:
        """Laminar's speed-up over a baseline at each point."""
        ours, theirs = self.points["laminar"], self.points[baseline]
        return {
            where: found[ours[where]].result.tokens_per_s / found[theirs[where]].result.tokens_per_s for where in ours
        }

    def efficiency(self, found: Found, system: str) -> dict[str, float]:
        """Strong scaling of each model: throughput's growth over devices' growth (section 8.1)."""
        points = self.points[system]
        efficiencies = {}
        for model in dict.fromkeys(model for model, _ in points):
            low, high = SCALES[model][0], SCALES[model][-1]
            grown = found[points[model, high]].result.tokens_per_s / found[points[model, low]].result.tokens_per_s
            efficiencies[model] = grown / (high / low)
        return efficiencies

    def ends(self, system: str) -> list[Point]:
        """The points of the smallest and largest scale of each model."""
        ends = {model: (scales[0], scales[-1]) for model, scales in SCALES.items()}
        return [point for (model, gpus), point in self.points[system].items() if gpus in ends[model]]


def measures(math: Speeds, tool: Speeds) -> dict[str, TargetMeasure]:
    """The measures of the targets of section 8.1 and Appendix B."""
    found: dict[str, TargetMeasure] = {}
    names = {"synchronous": "verl", "one-step": "onestep", "stream": "stream", "partial-rollout": "areal"}
    for baseline, name in names.items():
        points = math.needed("laminar", baseline)
        found[f"LAM-E2E-{name}-avg"] = TargetMeasure(points, _over(math, baseline, statistics.fmean))
        found[f"LAM-E2E-{name}-max"] = TargetMeasure(points, _over(math, baseline, max))
    everything = math.needed()
    found["LAM-E2E-largest-avg"] = TargetMeasure(everything, lambda lab: [statistics.fmean(_all(math, lab, _largest))])
    found["LAM-E2E-small-avg"] = TargetMeasure(everything, lambda lab: [statistics.fmean(_all(math, lab, _small))])
    found["LAM-E2E-tool-avg"] = TargetMeasure(tool.needed(), lambda lab: [statistics.fmean(_all(tool, lab))])
    found["LAM-E2E-tool-range"] = TargetMeasure(tool.needed(), lambda lab: [min(_all(tool, lab)), max(_all(tool, lab))])
    laminar, areal = math.ends("laminar"), math.ends("partial-rollout")
    found["LAM-SCAL-math"] = TargetMeasure(
        laminar, lambda lab: [statistics.fmean(math.efficiency(lab, "laminar").values())]
    )
    found["LAM-SCAL-math-max"] = TargetMeasure(laminar, lambda lab: [math.efficiency(lab, "laminar")["32B"]])
    found["LAM-SCAL-areal"] = TargetMeasure(areal, lambda lab: _mean_and_max(math.efficiency(lab, "partial-rollout")))
    found["LAM-SCAL-tool"] = TargetMeasure(tool.ends("laminar"), lambda lab: [tool.efficiency(lab, "laminar")["7B"]])
    found["LAM-SCAL-stream-tool"] = TargetMeasure(
        tool.ends("stream"), lambda lab: [tool.efficiency(lab, "stream")["7B"]]
    )
    return found


def orders(math: Speeds, tool: Speeds) -> dict[str, OrderStatement]:
    """The checks of section 8.1's statements on orders."""
    return {
        "fastest": OrderStatement(math.needed(), lambda lab: _fastest(math, lab)),
        "fastest-tool": OrderStatement(tool.needed(), lambda lab: _fastest(tool, lab)),
        "averages": OrderStatement(math.needed(), lambda lab: _averages(math, lab)),
        "scaling": OrderStatement(math.needed(), lambda lab: _scaling(math, lab, best="partial-rollout")),
        "scaling-tool": OrderStatement(tool.needed(), lambda lab: _scaling(tool, lab)),
        "grows": OrderStatement(math.needed(), lambda lab: _grows(math, lab)),
    }


def _over(speeds: Speeds, baseline: str, of: Callable[[Sequence[float]], float]) -> Callable[[Found], list[float]]:
    return lambda found: [of(list(speeds.over(found, baseline).values()))]


def _all(speeds: Speeds, found: Found, where: Callable[[Where], bool] = lambda _: True) -> list[float]:
    return [ratio for baseline in BASELINES for at, ratio in speeds.over(found, baseline).items() if where(at)]


def _largest(where: Where) -> bool:
    return where[1] == SCALES[where[0]][-1]


def _small(where: Where) -> bool:
    return where[1] <= SMALL


def _mean_and_max(efficiencies: Mapping[str, float]) -> list[float]:
    return [statistics.fmean(efficiencies.values()), max(efficiencies.values())]


def _fastest(speeds: Speeds, found: Found) -> list[tuple[str, bool]]:
    return [
        (f"{model} on {gpus}: {ratio:.2f} times {NAMES[baseline]}", ratio > 1)
        for baseline in BASELINES
        for (model, gpus), ratio in speeds.over(found, baseline).items()
    ]


def _averages(speeds: Speeds, found: Found) -> list[tuple[str, bool]]:
    means = {baseline: statistics.fmean(speeds.over(found, baseline).values()) for baseline in BASELINES}
    order = ("synchronous", "one-step", "stream", "partial-rollout")
    return [
        (
            f"{NAMES[faster]} ({means[faster]:.2f}) before {NAMES[slower]} ({means[slower]:.2f})",
            means[faster] < means[slower],
        )
        for slower, faster in pairwise(order)
    ]


def _scaling(speeds: Speeds, found: Found, best: str | None = None) -> list[tuple[str, bool]]:
    means = {system: statistics.fmean(speeds.efficiency(found, system).values()) for system in SYSTEMS}
    ours = means.pop("laminar")
    lines = [(f"Laminar {ours:.3f}, {NAMES[name]} {mean:.3f}", ours > mean) for name, mean in means.items()]
    if best is not None:
        others = [mean for name, mean in means.items() if name != best]
        lines.append((f"{NAMES[best]} {means[best]:.3f}, the next {max(others):.3f}", means[best] > max(others)))
    return lines


def _grows(speeds: Speeds, found: Found) -> list[tuple[str, bool]]:
    lines = []
    for baseline in BASELINES:
        over = speeds.over(found, baseline)
        for model, scales in SCALES.items():
            low, high = over[model, scales[0]], over[model, scales[-1]]
            lines.append((f"{model} over {NAMES[baseline]}: {low:.2f} to {high:.2f}", high > low))
    return lines
