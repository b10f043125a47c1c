"""The results of a run in one JSON object."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tailrace.contracts import Why
from tailrace.controller.evaluations import EvaluationResult
from tailrace.controller.lengths import Outcome, recall_of
from tailrace.controller.members import DATA, ENVIRONMENT, RANKER, RELAY, REPLICA, SCORER, TRAINER
from tailrace.controller.view import RunView
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.figures.batches import mean_counted, percentile
from tailrace.pipeline.run.figures.incidents import starved
from tailrace.pipeline.run.figures.results import MeasuredAnswers, Quantity, Results, baseline, results_of
from tailrace.ranker import Example, ceiling20

_AT_ONCE = 1_000  # texts in one message


def summarise(
    config: RunConfig,
    run: RunView,
    controls: Sequence[EvaluationResult],
    *,
    audit: Mapping[str, Any] | None,
    lengths: Iterable[int],
    wall_s: float,
    training_s: float,
    extra: Mapping[str, Any],
    prompt_characters: Mapping[int, int] | None = None,
) -> dict[str, Any]:
    """The content of ``summary.json``.

    Args:
        config: the configuration.
        run: the run's final state.
        controls: evaluations of the model that was fine-tuned further instead of trained by RL.
        audit: the trajectory store's own counts, independent of the controller's: `consumed` and `consumed_twice`; None if
            there is no store.
        lengths: response tokens of each trajectory that was trained on.
        wall_s: seconds of the whole run.
        training_s: seconds from the first published version to the last step.
        extra: further fields.
        prompt_characters: characters of each prompt that was trained on, if there is a ranker; None if prompts have no text.
    """
    counts = run.counts
    results = results_of(run.evaluations, controls, baseline=baseline(config))
    consumed = run.staleness_at_consumption
    samples = config.pipeline.samples_per_prompt
    trained = counts.trained_trajectories if audit is None else int(audit["consumed"])
    open_groups = 0 if run.finished else run.open_groups
    settled = trained + (counts.filtered + counts.failed + open_groups) * samples
    ordered = sorted(lengths)
    return {
        "app": config.app,
        "seed": config.seed,
        "wall_s": round(wall_s, 2),
        "training_s": round(training_s, 2),
        **_means(results),
        "evaluation": results.plain(),
        "steps": run.step,
        "trained_trajectories": trained,
        "trained_tokens": counts.trained_tokens,
        "tokens_per_s": round(counts.trained_tokens / training_s, 2) if training_s else 0.0,
        "staleness_bound": run.bound,
        "staleness_max": max(consumed, default=0),
        "staleness_mean": round(mean_counted(consumed), 4),
        "staleness_at_consumption": {str(lag): count for lag, count in sorted(consumed.items())},
        "staleness_at_completion": {str(lag): count for lag, count in sorted(run.staleness_at_completion.items())},
        "weight_versions": run.version + 1,
        "published_before_durable": run.published_before_durable,
        "partial_rollout": run.mixes_versions,
        "repacks": run.moves,
        "interrupting_pulls": run.interrupting_pulls,
        "migrated_trajectories": run.evictions,
        "resumed_on_newer": counts.resumed_on_newer,
        "cached_tokens": run.cached_tokens,
        "replica_restarts": run.replica_restarts,
        "restarts": {role: run.restarts(role) for role in (TRAINER, DATA, SCORER, RANKER, ENVIRONMENT, RELAY, REPLICA)},
        "regenerated_trajectories": counts.regenerated_trajectories,
        "turns": counts.turns,
        "turns_lost": counts.turns_lost,
        "sessions_restored": counts.sessions_restored,
        "sessions_replayed": counts.sessions_replayed,
        "sessions_lost": counts.sessions_lost,
        "admitted_trajectories": counts.prompts * samples,
        "surplus_trajectories": counts.surplus_trajectories,
        "cost_model": run.cost_model,
        "prompts": {
            "admitted": counts.prompts,
            "deferred": counts.deferred,
            "delayed": counts.delayed,
            "queued": len(counts.queued),
            "trained": counts.trained,
            "filtered": dict(sorted(counts.filtered_because.items())),
            "failed": counts.failed,
            "failed_because": dict(sorted(counts.failed_because.items())),
            "failed_words": dict(sorted(counts.failed_words.items())),
            "lost": run.lost_groups,
        },
        **(NO_RANKER if config.ranker is None else ranker_figures(run, prompt_characters)),
        "warnings": [*run.noted, *starved(counts.completed, counts.filtered_because.get(Why.NO_SIGNAL, 0))],
        "filtered_groups": counts.filtered,
        "failed_groups": counts.failed,
        "lost_trajectories": counts.prompts * samples - settled,
        "consumed_twice": None if audit is None else len(audit["consumed_twice"]),
        "contradictions": run.contradictions,
        "response_length_p50": percentile(ordered, 0.5),
        "response_length_p99": percentile(ordered, 0.99),
        **extra,
    }


def _means(results: Results) -> dict[str, Any]:
    """Accuracy (None if it is not known) and reward, before and after, of the best control, and of every control.

    Those by source are empty where all problems are of one.
    """

    def value(measured: MeasuredAnswers | None, quantity: Quantity) -> float | None:
        if measured is None or (quantity is Quantity.ACCURACY and measured.accuracy is None):
            return None
        return measured.estimate(quantity).value

    def part(measured: MeasuredAnswers | None, source: str) -> MeasuredAnswers | None:
        return None if measured is None else measured.sources.get(source)

    found: dict[str, Any] = {}
    for quantity in Quantity:
        found[f"eval_{quantity}_before"] = value(results.before, quantity)
        found[f"eval_{quantity}_after"] = value(results.after, quantity)
        found[f"eval_{quantity}_best_control"] = value(results.best_control, quantity)
        found[f"eval_{quantity}_after_greedy"] = value(results.after_greedy, quantity)
        found[f"eval_{quantity}_by_source"] = {
            source: {
                "before": value(part(results.before, source), quantity),
                "after": value(part(results.after, source), quantity),
                "after_greedy": value(part(results.after_greedy, source), quantity),
                "controls": {one.name: value(part(one, source), quantity) for one in results.controls},
            }
            for source in results.sources
        }
    decisive = results.quantities[0] if results.quantities else Quantity.ACCURACY
    return {**found, "controls": {control.name: value(control, decisive) for control in results.controls}}


def prompt_characters(run: RunView, texts: Callable[[Sequence[int]], Sequence[str]]) -> dict[int, int]:
    """The number of characters of each prompt that a run with a ranker trained on.

    Args:
        texts: texts of prompts of the stream, by their indices.
    """
    prompts = sorted({outcome.prompt for outcome in run.prediction_outcomes})
    found: dict[int, int] = {}
    for first in range(0, len(prompts), _AT_ONCE):
        some = prompts[first : first + _AT_ONCE]
        found |= {prompt: len(text) for prompt, text in zip(some, texts(some), strict=True)}
    return found


def ranker_figures(run: RunView, characters: Mapping[int, int] | None) -> dict[str, Any]:
    """The figures as fields of a summary.

    Recalls and ceiling are of the longest 20 % of the trajectories that were trained on. A ranker that learns anew predicts on
    another scale, so each is taken for each ranker by itself, weighted with its trajectories. A prediction counts as it stood
    when its group started; without one, a trajectory stands below those that have one. Where none had one there is no recall.
    The ceiling is what half of a group's own responses tell of the other half; None if groups have one response.

    Args:
        characters: what `prompt_characters` found; None if there are no texts.
    """
    rankers: dict[int, list[Outcome]] = {}
    for outcome in run.prediction_outcomes:
        rankers.setdefault(outcome.ranker, []).append(outcome)

    def over(figure: Callable[[Sequence[Outcome]], float | None]) -> float | None:
        found = [(figure(outcomes), sum(len(outcome.lengths) for outcome in outcomes)) for outcomes in rankers.values()]
        told = [(value, weight) for value, weight in found if value is not None]
        weights = sum(weight for _, weight in told)
        return round(sum(value * weight for value, weight in told) / weights, 4) if weights else None

    def of(score: Callable[[Outcome], float | None]) -> float | None:
        return over(lambda outcomes: recall_of((score(outcome), outcome) for outcome in outcomes))

    return {
        "ranker_recall20": of(lambda outcome: outcome.predicted)
        if any(outcome.predicted is not None for outcome in run.prediction_outcomes)
        else None,
        "prompt_length_recall20": None if characters is None else of(lambda outcome: characters[outcome.prompt]),
        "ranker_ceiling20": over(_ceiling),
        "ranker_updates": run.ranker_updates,
        "unpredicted": run.counts.unpredicted,
    }


def _ceiling(outcomes: Sequence[Outcome]) -> float | None:
    examples = [
        Example(f"{place}", tuple([max(1, length) for length in outcome.lengths]))
        for place, outcome in enumerate(outcomes)
        if outcome.lengths
    ]
    return ceiling20(examples) if examples else None


NO_RANKER = dict.fromkeys(
    ("ranker_recall20", "prompt_length_recall20", "ranker_ceiling20", "ranker_updates", "unpredicted")
)
"""The figures of a run without one."""
