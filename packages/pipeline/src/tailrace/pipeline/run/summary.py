"""The outcome of a run in one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.controller.controller import Controller
from tailrace.pipeline.controller.evaluations import EvaluationResult
from tailrace.pipeline.run.metrics import percentile
from tailrace.pipeline.run.prepare import GREEDY, SAMPLED
from tailrace.pipeline.run.reporting.fates import prompts


def summarise(
    config: RunConfig,
    controller: Controller,
    controls: list[EvaluationResult],
    *,
    audit: Mapping[str, Any],
    lengths: list[int],
    wall_s: float,
    training_s: float,
    extra: Mapping[str, Any],
) -> dict[str, Any]:
    """What ``summary.json`` says.

    Args:
        controls: evaluations of the model that was fine-tuned on instead of trained by RL.
        audit: the trajectory store's own count, independent of the controller's.
        lengths: response lengths of everything that was trained on, in tokens.
        wall_s: seconds of the whole run.
        training_s: seconds from the first published version to the last step.
    """
    counts, learner = controller.ledger.counts, controller.learner
    results = controller.evaluations.results
    before = (
        {result.mode: result.accuracy for result in results if result.version == results[0].version} if results else {}
    )
    last = max((result.version for result in results), default=0)
    after = {result.mode: result.accuracy for result in results if result.version == last}
    control_accuracies = {f"warm start, {mode}": value for mode, value in before.items() if mode != SAMPLED}
    control_accuracies |= {f"continued fine-tuning, {result.mode}": result.accuracy for result in controls}
    best = max(control_accuracies.values(), default=None)
    consumed = learner.staleness_at_consumption
    samples = config.pipeline.samples_per_prompt
    trained = int(audit["consumed"])
    settled = trained + (counts.filtered + counts.failed) * samples
    lengths = sorted(lengths)
    lags = sum(consumed.values())
    became, coordinator = prompts(controller), controller.coordinator
    return {
        "app": config.app,
        "seed": config.seed,
        "wall_s": round(wall_s, 2),
        "training_s": round(training_s, 2),
        "eval_accuracy_before": before.get(SAMPLED),
        "eval_accuracy_after": after.get(SAMPLED),
        "eval_accuracy_best_control": best,
        "eval_accuracy_after_greedy": after.get(GREEDY),
        "controls": control_accuracies,
        "steps": learner.step,
        "trained_trajectories": trained,
        "trained_tokens": counts.trained_tokens,
        "tokens_per_s": round(counts.trained_tokens / training_s, 2) if training_s else 0.0,
        "staleness_bound": controller.gate.bound,
        "staleness_max": max(consumed, default=0),
        "staleness_mean": round(sum(lag * count for lag, count in consumed.items()) / lags, 4) if lags else 0.0,
        "staleness_at_consumption": {str(lag): count for lag, count in sorted(consumed.items())},
        "staleness_at_completion": {str(lag): count for lag, count in sorted(learner.staleness_at_completion.items())},
        "weight_versions": learner.version + 1,
        "partial_rollout": controller.ledger.mixes_versions,
        "repacks": controller.moves,
        "interrupting_pulls": coordinator.interrupting_pulls,
        "migrated_trajectories": coordinator.evictions,
        "resumed_on_newer": counts.resumed_on_newer,
        "replica_restarts": controller.replica_restarts,
        "regenerated_trajectories": counts.regenerated_trajectories,
        "admitted_trajectories": counts.admitted * samples,
        "surplus_trajectories": counts.surplus_trajectories,
        "prompts": {
            "admitted": became.admitted,
            "trained": became.trained,
            "filtered": became.filtered,
            "failed": became.failed,
            "lost": became.lost,
        },
        "filtered_groups": counts.filtered,
        "failed_groups": counts.failed,
        "lost_trajectories": counts.admitted * samples - settled,
        "consumed_twice": len(audit["consumed_twice"]),
        "contradictions": controller.fleet.contradictions,
        "response_length_p50": percentile(lengths, 0.5),
        "response_length_p99": percentile(lengths, 0.99),
        **extra,
    }
