"""Step times of RollPacker, of its parts, and of the systems that it is compared with (sections 6.1, 6.2, 6.5, 6.7, 6.8)."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise

from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure
from tailrace.rollpacker.paper.points import (
    MODELS,
    ONE_STEP,
    ROLLPACKER,
    VERL,
    one_off,
    parts,
    point,
    rlhfuse,
    tail_batched,
)
from tailrace.rollpacker.paper.rounds import of_kind

SCALES = {32: 128, 64: 256, 128: 512}
"""Prompts of a batch by devices (section 6.8)."""


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets on step times."""
    verl = {model: point(VERL, model, quick=quick) for model in MODELS}
    fused = {model: rlhfuse(model, quick=quick) for model in MODELS}
    table = {model: parts(model, quick=quick) for model in MODELS}
    ours = {model: columns[-1] for model, columns in table.items()}
    code = point(VERL, "14B", quick=quick, kind="code")
    tail = tail_batched(code)
    verl_ahead, ours_ahead = point(ONE_STEP, "7B", quick=quick, prompts=32, gpus=8), one_off(quick=quick)
    scales = {
        gpus: [point(system, "14B", quick=quick, prompts=prompts, gpus=gpus) for system in (VERL, ROLLPACKER)]
        for gpus, prompts in SCALES.items()
    }

    def over(found: Found, slower: dict[str, Point]) -> list[float]:
        return [step_s(found, slower[model]) / step_s(found, ours[model]) for model in MODELS]

    def scheduled(found: Found) -> list[float]:
        return [step_s(found, staged) / step_s(found, scored) for staged, scored, *_ in table.values()]

    staged_and_scored = [at for columns in table.values() for at in columns[:2]]
    return {
        "RP-E2E-verl": TargetMeasure([*verl.values(), *ours.values()], lambda lab: over(lab, verl)),
        "RP-E2E-rlhfuse": TargetMeasure([*fused.values(), *ours.values()], lambda lab: over(lab, fused)),
        "RP-E2E-short": TargetMeasure(
            [*verl.values(), *fused.values(), *ours.values()],
            lambda lab: [
                step_s(lab, slower[model]) / step_s(lab, ours[model], "short")
                for slower in (verl, fused)
                for model in MODELS
            ],
        ),
        "RP-ABL": TargetMeasure(
            [*verl.values(), *(at for columns in table.values() for at in columns)],
            lambda lab: [
                step_s(lab, verl[model]) / step_s(lab, at) for model, columns in table.items() for at in columns
            ],
        ),
        "RP-TAIL-e2e": TargetMeasure([code, tail], lambda lab: [step_s(lab, code) / step_s(lab, tail)]),
        "RP-REW-async": TargetMeasure(staged_and_scored, scheduled),
        "RP-REW-avg": TargetMeasure(staged_and_scored, lambda lab: [1 - 1 / statistics.fmean(scheduled(lab))]),
        "RP-ONEOFF": TargetMeasure(
            [verl_ahead, ours_ahead], lambda lab: [lab[verl_ahead].result.step_s / lab[ours_ahead].result.step_s]
        ),
        "RP-SCALE": TargetMeasure([at for pair in scales.values() for at in pair], lambda lab: _scaling(lab, scales)),
    }


def step_s(found: Found, at: Point, kind: str | None = None) -> float:
    """Mean seconds of a step."""
    return statistics.fmean(one.step_s for one in of_kind(found[at].steps, kind))


def _scaling(found: Found, scales: Mapping[int, Sequence[Point]]) -> list[float]:
    samples_per_s = {gpus: [SCALES[gpus] / step_s(found, at) for at in pair] for gpus, pair in scales.items()}
    over = [ours / verl for verl, ours in samples_per_s.values()]
    doubled = [after[1] / before[1] for before, after in pairwise(samples_per_s.values())]
    return [statistics.fmean(over), statistics.fmean(doubled)]
