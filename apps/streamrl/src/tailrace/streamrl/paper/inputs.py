"""What was put in: devices, models, lengths, the share that is the tail; and what holds by construction."""

from __future__ import annotations

from tailrace.fleetsim.fleet.stage_times import StageTimes
from tailrace.fleetsim.hardware import device, model
from tailrace.fleetsim.reproduce import TargetMeasure, Toml
from tailrace.repack import SkewAware, lpt
from tailrace.streamrl.paper.points import MODELS, asynchronous
from tailrace.streamrl.paper.sections import MACHINE_COST

SLOTS = 10


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of inputs and of identities."""
    return {
        "SR-GPU": TargetMeasure((), lambda _: [figure for kind in MACHINE_COST for figure in _device(kind)]),
        "SR-MODEL": TargetMeasure((), lambda _: [figure for at in MODELS.values() for figure in _model(at.shape)]),
        "SR-ALPHA": TargetMeasure((), lambda _: [SkewAware(1e-6, 1e-2, 1e-4, 1e-3).alpha]),
        "SR-LPT": TargetMeasure((), lambda _: [_worst()]),
        "SR-PLATEAU": TargetMeasure((), lambda _: [_plateaus(quick=quick)]),
    }


def _device(name: str) -> list[float]:
    at = device(name)
    return [
        at.peak_flops / 1e12,
        at.memory_bytes / 1e9,
        at.hbm_bandwidth / 1e12,
        at.nvlink_bandwidth / 1e9,
        MACHINE_COST[name],
    ]


def _model(name: str) -> list[float]:
    at = model(name)
    return [float(count) for count in (at.layers, at.query_heads, at.kv_heads, at.hidden)]


def _worst() -> float:
    """The makespan over the best possible, of Graham's worst case for so many slots."""
    lengths = [length for length in range(2 * SLOTS - 1, SLOTS, -1) for _ in range(2)] + [SLOTS] * 3
    return lpt(lengths, SLOTS).makespan / (3 * SLOTS)


def _plateaus(*, quick: bool) -> bool:
    """Whether eight times the devices make training of 7B faster by more than generation, with 8,192 tokens each (Figure 2)."""
    fixed = asynchronous("7B", "10K", quick=quick).over(
        fleet__workload__response=Toml("{ tokens = 8192 }"),
    )
    times = StageTimes(fixed.config())
    generation, training = (stage(8) / stage(64) for stage in (lambda n: times.generation(n).seconds, times.train_s))
    return training > generation
