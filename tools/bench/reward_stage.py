"""The reward stage of simulated synchronous steps: scores at the step's end or as responses finish, fixed or adaptive timeouts.

    uv run python tools/bench/reward_stage.py [--steps N] [--seed N] [--json FILE]

RollPacker's setting (section 6): Qwen2.5-7B, 14B and 32B on 16, 32 and 64 H800, 128 prompts with 8 responses, at most 8k, 16k
and 32k tokens; code, of which 5 % never ends, timeouts of 2 to 30 s. Fitted: the median length, to section 2.2; the engine's
and the trainer's speed, so that the long 14B step has the shares of rollout, reward and training that the paper's Table 1 gives
for code (66, 13 and 21 %). Assumed, since the paper does not say: 256 workers, and seconds of the programs that end (median 1,
sigma 0.8, most of it between prompts). Predicted: the ratios.

Rounds are stood in for by their lengths (`tailrace reproduce rollpacker` has them from the policy): of five steps four are
short, with responses
8.9 times shorter at the most (section 3), and one is long. The three forms:

    at the end       every score starts after the step's last response; every program that never ends holds a worker for 30 s
    streamed         each score starts when its response is there; the same timeouts
    adaptive         streamed, and a timeout of 1.5 times the slowest right response of the prompt so far (2 to 30 s)
    with references  adaptive, and each prompt has a reference solution, whose time counts until a response is right
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tailrace.contracts import Finished, Scored, Stepped
from tailrace.fleetsim import simulate
from tailrace.pipeline.config.loading import validate

PAPER_ASYNC = {"7B": 1.48, "14B": 1.35, "32B": 1.18}
PAPER_TIMEOUT = 1.6
SHORTER = 8.9
SIZES = {"7B": (16, 1, 8192), "14B": (32, 2, 16384), "32B": (64, 2, 32768)}
CODE = {"kind": "code", "median": 1.0, "sigma": 0.8, "correlation": 0.7, "endless": 0.05}
WORKERS, MFU, ENGINE_S = 256, 0.098, 0.0031
FORMS: dict[str, dict[str, Any]] = {
    "at the end": {"at_step_end": True, "min_timeout_s": 30.0},
    "streamed": {"min_timeout_s": 30.0},
    "adaptive": {},
    "with references": {},
}


@dataclass(frozen=True)
class StepTimes:
    """Mean seconds of a step: until its last response is there, from then until the last score, and of training."""

    rollout_s: float
    exposed_s: float
    training_s: float

    @property
    def scored_s(self) -> float:
        return self.rollout_s + self.exposed_s

    @property
    def step_s(self) -> float:
        return self.scored_s + self.training_s


def step_times(size: str, form: str, most_tokens: int, steps: int, seed: int) -> StepTimes:
    gpus, tensor_parallel, _ = SIZES[size]
    code = CODE | {"references": form == "with references"}
    config = {
        "app": "laminar",
        "pipeline": {
            "admission": "on-policy",
            "sync": "barrier",
            "routing": "least-loaded",
            "relocation": "none",
            "steps": steps,
            "prompts_per_step": 128,
            "samples_per_prompt": 8,
            "prompts_per_replica": 2 * 128 * tensor_parallel // gpus,
        },
        "rollout": {"max_tokens": most_tokens},
        "fleet": {
            "model": f"Qwen2.5-{size}",
            "placement": "colocated",
            "weights": "global",
            "warm_up": 1,
            "trainer": {"gpus": gpus, "passes": 2, "mfu": MFU},
            "rollout": {"gpus": gpus, "tensor_parallel": tensor_parallel, "step_s": ENGINE_S},
            "workload": {
                "response": [{"median": 580, "sigma": 1.0}],
                "scoring": [code],
            },
            "scoring": {"code": {"workers": WORKERS, **FORMS[form]}},
        },
    }
    result = simulate(validate([("bench", config)]), seed=seed)
    assert result.failure is None, result.failure
    finished = scored = stepped = 0.0
    times = []
    for now, *events in result.events:
        for event in events:
            if isinstance(event, Finished):
                finished = now
            elif isinstance(event, Scored):
                scored = now
            elif isinstance(event, Stepped):
                end = max(scored, finished)
                times.append((finished - stepped, end - finished, now - end))
                stepped = now
    return StepTimes(*(statistics.fmean(column) for column in zip(*times[1:steps], strict=True)))


def period(size: str, form: str, steps: int, seed: int) -> tuple[StepTimes, StepTimes, StepTimes]:
    """A short step, a long one, and the mean of four short ones and a long one."""
    most = SIZES[size][2]
    short, long = (step_times(size, form, tokens, steps, seed) for tokens in (int(most / SHORTER), most))
    parts = ("rollout_s", "exposed_s", "training_s")
    return short, long, StepTimes(*(0.8 * getattr(short, part) + 0.2 * getattr(long, part) for part in parts))


def main() -> None:
    parser = argparse.ArgumentParser(description="The reward stage of simulated synchronous steps.")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    for size in SIZES:
        rows = {form: period(size, form, options.steps, options.seed) for form in FORMS}
        for form, (short, long, mean) in rows.items():
            rounds = [f"{at.step_s:6.1f} s ({at.exposed_s:4.1f} of them exposed)" for at in (short, long)]
            print(f"{size:4} {form:16} short {rounds[0]}, long {rounds[1]}, mean {mean.step_s:6.1f} s")
        _, plain, end = rows["at the end"]
        shares = [100 * part / plain.step_s for part in (plain.rollout_s, plain.exposed_s, plain.training_s)]
        figures[size] = {
            "shares_of_the_long_step": shares,
            "async_speedup": {form: end.step_s / rows[form][2].step_s for form in FORMS},
            "timeout_speedup": {form: rows["streamed"][2].scored_s / rows[form][2].scored_s for form in FORMS},
            "paper_async_speedup": PAPER_ASYNC[size],
        }
        print(
            f"     long step at the end: rollout {shares[0]:.0f} %, reward {shares[1]:.0f} %, training {shares[2]:.0f} %"
        )
        speedups = ", ".join(f"{form} {found:.2f}" for form, found in figures[size]["async_speedup"].items())
        print(f"     step, speedup over the end: {speedups}; paper {PAPER_ASYNC[size]}")
        speedups = ", ".join(f"{form} {found:.2f}" for form, found in figures[size]["timeout_speedup"].items())
        print(
            f"     rollout and reward, speedup over streamed: {speedups}" + f"; paper {PAPER_TIMEOUT}" * (size == "7B")
        )
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
