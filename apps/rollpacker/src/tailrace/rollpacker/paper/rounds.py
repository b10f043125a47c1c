"""Short and long rounds, and the synchronous baseline that they are compared with.

Rounds: lengths, rollout times, preemptions, scores (sections 3, 4.2, 4.3, 6.2, 6.3, 6.5). The baseline, and what was
put in: shares of a step, lengths, timeouts, costs (sections 2.2 and 4).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import count, islice

from tailrace.fleetsim.cost import DecodeCost
from tailrace.fleetsim.fleet.build import build_fleet
from tailrace.fleetsim.hardware import device, model
from tailrace.fleetsim.reproduce import Found, Point, TargetMeasure
from tailrace.fleetsim.reproduce.steps import StepParts
from tailrace.fleetsim.workload.config import WorkloadConfig
from tailrace.rollout import TailRounds
from tailrace.rollpacker.paper.points import (
    FACTOR,
    MODELS,
    PERIOD,
    PRESSURE,
    PROMPTS,
    ROLLPACKER,
    SAMPLES,
    VERL,
    fixed_timeouts,
    point,
    tail_batched,
    value,
)

FACTORS = (1.25, 1.5)
ALIKE = 0.10


def measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets on rounds."""
    code = point(VERL, "14B", quick=quick, kind="code")
    tail = tail_batched(code)
    verl, ours = (point(system, "32B", quick=quick) for system in (VERL, ROLLPACKER))
    adaptive = point(ROLLPACKER, "7B", quick=quick, kind="code")
    fixed = fixed_timeouts(adaptive)
    pressed = {tp: _pressed(tp, quick=quick) for tp in (1, 2)}
    scaled = _scaled(quick=quick)
    every = [at for points in scaled.values() for at in points.values()]
    return {
        "RP-TAIL-maxlen": TargetMeasure([code, tail], lambda lab: [_shorter(lab[code].steps, lab[tail].steps)]),
        "RP-TAIL-period": TargetMeasure((), lambda _: _period()),
        "RP-TAIL-short-rollout": TargetMeasure(
            [verl, ours], lambda lab: [rollout_s(lab[verl].steps) / rollout_s(lab[ours].steps, "short")]
        ),
        "RP-TAIL-sens": TargetMeasure(every, lambda lab: _sensitivity(lab, scaled)),
        "RP-TAIL-eta": TargetMeasure(list(scaled["32B"].values()), lambda lab: [_factors(lab, scaled["32B"])]),
        "RP-TAIL-tpot": TargetMeasure([pressed[1]], lambda lab: [_alike(lab[pressed[1]].steps)]),
        "RP-PREEMPT": TargetMeasure(list(pressed.values()), lambda lab: _preemptions(lab, pressed)),
        "RP-TP1": TargetMeasure(list(pressed.values()), lambda lab: _wider(lab, pressed)),
        "RP-REW-share": TargetMeasure([tail], lambda lab: [shares(lab, tail)[1]]),
        "RP-REW-timeout": TargetMeasure(
            [adaptive, fixed], lambda lab: [scored_s(lab[fixed].steps) / scored_s(lab[adaptive].steps)]
        ),
    }


def of_kind(steps: Sequence[StepParts], kind: str | None) -> list[StepParts]:
    """Steps of a kind of rounds; all if None."""
    return [one for one in steps if kind is None or one.kind == kind]


def rollout_s(steps: Sequence[StepParts], kind: str | None = None) -> float:
    """Mean seconds of a step's rollout."""
    return statistics.fmean(one.rollout_s for one in of_kind(steps, kind))


def scored_s(steps: Sequence[StepParts]) -> float:
    """Mean seconds until a step's last score."""
    return statistics.fmean(one.scored_s for one in steps)


def _shorter(plain: Sequence[StepParts], rounds: Sequence[StepParts]) -> float:
    """The longest response of a step over that of the same step with rounds: of a period the largest, of periods the mean."""
    pairs = list(zip(plain, rounds, strict=True))
    periods = [pairs[at : at + PERIOD] for at in range(0, len(pairs), PERIOD)]
    return statistics.fmean(
        max(one.longest / short.longest for one, short in period if short.kind == "short") for period in periods
    )


def _period() -> list[float]:
    """Short rounds before the first long one, and long ones in a row."""
    rounds, numbers = TailRounds(PROMPTS, SAMPLES, FACTOR, FACTOR), count()
    kinds = []
    for _ in range(2 * PERIOD):
        opened = rounds.open(lambda most: list(islice(numbers, most)))
        assert opened is not None
        kinds.append(opened.kind)
        kept = opened.prompts[: opened.size]
        for prompt in kept:
            rounds.completed(prompt)
        rounds.close(kept)
    short = kinds.index("long")
    return [short, kinds[short:].index("short")]


def _pressed(tp: int, *, quick: bool) -> Point:
    """Qwen3-8B on mathematics with tail batching, without a planner (section 4.2)."""
    at = tail_batched(point(VERL, PRESSURE, quick=quick, kind="math"))
    return at.over(fleet__rollout__tensor_parallel=tp)


def _preemptions(found: Found, pressed: dict[int, Point]) -> list[float]:
    def mean(tp: int, kind: str) -> float:
        return statistics.fmean(one.preemptions for one in of_kind(found[pressed[tp]].steps, kind))

    most = max(one.preemptions for one in of_kind(found[pressed[1]].steps, "short"))
    return [most / mean(1, "long"), *(1 - mean(2, kind) / mean(1, kind) for kind in ("short", "long"))]


def _wider(found: Found, pressed: dict[int, Point]) -> list[float]:
    narrow, wide = (found[pressed[tp]].steps for tp in (1, 2))
    short = rollout_s(narrow, "short")
    return [short / rollout_s(narrow, "long"), 1 - rollout_s(wide, "short") / short]


def _alike(steps: Sequence[StepParts]) -> bool:
    short, long = (statistics.fmean(one.token_s for one in of_kind(steps, kind)) for kind in ("short", "long"))
    return abs(short / long - 1) <= ALIKE


def _scaled(*, quick: bool) -> dict[str, dict[tuple[float, float], Point]]:
    """Each model by its prompt and sample factors. Only rollouts are compared, so scores do not wait for their end."""
    both = {(FACTOR, FACTOR)} | {(1.0, factor) for factor in FACTORS} | {(factor, 1.0) for factor in FACTORS}
    found = {}
    for name in MODELS:
        plain = point(VERL, name, quick=quick)
        found[name] = {(1.0, 1.0): plain} | {factors: tail_batched(plain, *factors) for factors in sorted(both)}
    return found


def _sensitivity(found: Found, scaled: dict[str, dict[tuple[float, float], Point]]) -> list[float]:
    over: dict[str, list[float]] = {"verl": [], "samples": [], "prompts": []}
    for points in scaled.values():
        seconds = {factors: rollout_s(found[at].steps) for factors, at in points.items()}
        ours = seconds[FACTOR, FACTOR]
        over["verl"].append(seconds[1.0, 1.0] / ours)
        over["samples"] += [seconds[1.0, factor] / ours for factor in FACTORS]
        over["prompts"] += [seconds[factor, 1.0] / ours for factor in FACTORS]
    return [max(ratios) for ratios in over.values()]


def _factors(found: Found, points: dict[tuple[float, float], Point]) -> bool:
    seconds = {factors: rollout_s(found[at].steps) for factors, at in points.items()}
    little, much = (seconds[1.0, 1.0] - seconds[1.0, factor] for factor in FACTORS)
    return seconds[1.5, 1.0] > seconds[1.25, 1.0] and much - little > little


CONTEXT = 2048
"""Tokens of each context in the profiler's comparison of batches. The paper does not say; the middle of what it ran."""


def baseline_measures(*, quick: bool) -> dict[str, TargetMeasure]:
    """The measures of the targets of sections 2.2 and 4.1, and of inputs."""
    alone = {kind: point(VERL, "14B", quick=quick, kind=kind) for kind in ("math", "code", "judge")}
    return {
        "RP-T1": TargetMeasure(
            list(alone.values()), lambda lab: [share for at in alone.values() for share in shares(lab, at)]
        ),
        "RP-LEN": TargetMeasure((), lambda _: _lengths()),
        "RP-PROFILE": TargetMeasure((), lambda _: [_step_s(64) / _step_s(32)]),
        "RP-REW-params": TargetMeasure((), lambda _: _timeouts(point(ROLLPACKER, "14B", quick=quick))),
    }


def shares(found: Found, at: Point) -> list[float]:
    """Rollout's, reward's and training's shares of a mean step."""
    steps = found[at].steps
    rollout, scored, step = (
        statistics.fmean(getattr(one, name) for one in steps) for name in ("rollout_s", "scored_s", "step_s")
    )
    return [rollout / step, (scored - rollout) / step, (step - scored) / step]


def _lengths() -> list[float]:
    """Figures of 14B's lengths; the longest is that of a batch of 1,024, on average."""
    at = MODELS["14B"]
    median, sigma = value("response.median"), value("16k.response.sigma")
    table = WorkloadConfig.model_validate({"response": {"median": median, "sigma": sigma}}).build(0, at.limit)
    longest = statistics.fmean(
        max(sample.turns[0][0] for index in range(batch * 128, batch * 128 + 128) for sample in table.group(index, 8))
        for batch in range(20)
    )
    p75 = median * math.exp(sigma * statistics.NormalDist().inv_cdf(0.75))
    return [longest / median, p75, float(at.limit)]


def _step_s(running: int) -> float:
    at = MODELS["14B"]
    cost = DecodeCost.of(model(at.shape), device("H800"), at.parallel)
    return cost.step_s(running, running * CONTEXT) + value("step_s")


def _timeouts(at: Point) -> list[float]:
    fleet = build_fleet(at.config())
    rule = fleet.scoring["code"].timeout
    (code,) = [kind for kind in at.config().fleet["workload"]["scoring"] if kind["kind"] == "code"]
    return [rule.factor, rule.t_min_s, rule.t_max_s, fleet.scoring["math"].timeout.t_max_s, code["endless"]]
