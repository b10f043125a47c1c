"""Figures from a side's ``result.json``. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from processor_time import cores

Result = Mapping[str, Any]
BUFFERED_STEPS = (
    3  # batches that Tailrace's buffer holds: when no prompt is left to admit, the last steps have the cores alone
)


def window(steps: int) -> tuple[int, int]:
    """The steps that rates are taken over, the same on both sides: from the end of the first to the end of the second.

    Without the first steps, which fill caches and Tailrace's buffer, and without the last, which empty the buffer.
    """
    first = 2 if steps >= 10 else 1
    return first, max(first + 1, steps - BUFFERED_STEPS)


def tokens_per_s(result: Result) -> float:
    """Completion tokens that were trained on in the window, per second."""
    begin_s, end_s, steps = _window(result)
    return float(sum(step["tokens"] for step in steps) / (end_s - begin_s))


def whole_tokens_per_s(result: Result) -> float:
    """The same from the first moment of training to the end of the last step."""
    return float(sum(step["tokens"] for step in result["steps"]) / result["steps"][-1]["at_s"])


def seconds_to(result: Result, accuracies: Mapping[int, float], target: float) -> float | None:
    """Seconds of training until held-out accuracy is `target`, linear between snapshots; None where it is not reached.

    Args:
        accuracies: by step; step 0 is the model that training starts from.
    """
    at_s = {0: 0.0} | {int(step["step"]): float(step["at_s"]) for step in result["steps"]}
    before = 0
    for step in sorted(accuracies):
        if accuracies[step] >= target:
            if step == 0:
                return 0.0
            rise = accuracies[step] - accuracies[before]
            share = (target - accuracies[before]) / rise
            return at_s[before] + share * (at_s[step] - at_s[before])
        before = step
    return None


def trl_times(result: Result) -> dict[str, float]:
    """Shares of TRL's window by its own timers, and the cores that it kept busy."""
    begin_s, end_s, steps = _window(result)
    length_s = end_s - begin_s

    def total(*names: str) -> float:
        return float(sum(step.get(name, 0.0) for step in steps for name in names))

    generation_s = total("transformers.generate", "transformers.generate_batch", "vLLM.generate")
    reward_s, rollout_s, step_s = total("_calculate_rewards"), total("_prepare_inputs"), total("training_step")
    sync_s = total("sync_weights")
    before = _before(result, steps[0])
    cpu_s, machine_s = (steps[-1][name] - before[name] for name in ("cpu_s", "machine_s"))
    return {
        "generation": generation_s / length_s,
        "training": (step_s - rollout_s) / length_s,
        "reward": reward_s / length_s,
        "weight_sync": sync_s / length_s,
        "other": (length_s - generation_s - reward_s - sync_s - (step_s - rollout_s)) / length_s,
        "seconds_per_step": length_s / len(steps),
        "busy_cores": cpu_s / length_s,
        "others_cores": max(0.0, machine_s - cpu_s) / length_s,
        "longest_completion_mean": total("longest") / len(steps),
        "completion_mean": total("tokens") / len(steps) / result["completions"],
    }


def tailrace_times(result: Result) -> dict[str, Any]:
    """Shares of each role's time in the window, their bubbles by cause, and the cores that each role kept busy."""
    begin_s, end_s, steps = _window(result)
    length_s = end_s - begin_s
    roles: dict[str, Any] = {}
    for role in ("trainer", "replica"):
        spans = [span for span in result["spans"] if span[0] == role]
        members = len({span[1] for span in spans})
        roles[role] = _shares(spans, begin_s, end_s, members)
    used = cores([(float(at_s), seconds) for at_s, seconds in result["cpu"]], begin_s, end_s)
    machine = used.pop("machine", None)
    parts = ("fetch_s", "forward_s", "backward_s", "optimizer_s", "wall_s")
    return {
        **roles,
        "trainer_step": {name: sum(step[name] for step in steps) / length_s for name in parts},
        "seconds_per_step": length_s / len(steps),
        "busy_cores": {"all": sum(used.values()), **used},
        "others_cores": None if machine is None else max(0.0, machine - sum(used.values())),
        "staleness_mean": sum(step["staleness_mean"] or 0.0 for step in steps) / len(steps),
        "longest_completion_mean": sum(step["longest"] for step in steps) / len(steps),
    }


def others_cores(result: Result) -> float | None:
    """Cores that other programs kept busy in the window: above a tenth or so, the rate is not to be quoted."""
    times = tailrace_times(result) if "spans" in result else trl_times(result)
    found: float | None = times["others_cores"]
    return found


def _shares(spans: Iterable[list[Any]], begin_s: float, end_s: float, members: int) -> dict[str, float]:
    shares: dict[str, float] = defaultdict(float)
    for _, _, doing, start_s, stop_s, label in spans:
        inside = min(stop_s, end_s) - max(start_s, begin_s)
        if inside > 0:
            name = f"{doing}: {label}" if doing in ("idle", "waiting") else doing
            shares[name] += inside / (members * (end_s - begin_s))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _window(result: Result) -> tuple[float, float, list[dict[str, Any]]]:
    steps = result["steps"]
    first, last = window(len(steps))
    return float(steps[first - 1]["at_s"]), float(steps[last - 1]["at_s"]), list(steps[first:last])


def _before(result: Result, step: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = result["steps"][step["step"] - 2]
    return found
