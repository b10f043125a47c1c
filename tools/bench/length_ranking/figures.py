"""Recall, its ceiling and their uncertainty over prompts, with numpy: a bootstrap asks for recall thousands of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from length_ranking.trials import Outcome, Predicted

from tailrace.ranker.recall import recall, tail_count, tau_b

SHARES = {"recall20": 0.2, "recall10": 0.1, "recall5": 0.05}
DRAWS = 300
_HALVES = 8


def figures(found: Mapping[str, Outcome], seed: int) -> dict[str, Any]:
    """Each method's recall at each share, over the ceiling, tau-b and coverage; and what recall would be by chance.

    Every figure comes with ``_draws``: its value in each of `DRAWS` resamplings of the prompts, the same for all methods, so
    that differences can be resampled too.

    Args:
        found: the methods, on the same prompts.
        seed: of the resampling.
    """
    whole = next(one for one in found.values() if not one.needs_samples).ways[0]
    order = sorted(whole.lengths)
    lengths = np.array([whole.lengths[index] for index in order])
    draws = np.random.default_rng(seed).integers(len(order), size=(DRAWS, len(order)))
    halves = np.random.default_rng(seed + 1)
    ceilings = {
        name: resampled(lambda at, share=share: ceiling(lengths[at], share, halves), draws, len(order))
        for name, share in SHARES.items()
    }
    methods = {name: _method(one, order, draws, ceilings) for name, one in found.items()}
    return {"prompts": len(order), "samples": int(lengths.size), "ceiling": ceilings, "methods": methods}


def resampled(value: Callable[[Any], float], draws: Any, count: int) -> dict[str, Any]:
    """A figure of all prompts, and of each resampling of them."""
    return {"value": value(np.arange(count)), "draws": np.array([value(at) for at in draws])}


def _method(one: Outcome, order: Sequence[int], draws: Any, ceilings: Mapping[str, Any]) -> dict[str, Any]:
    ways = [_arrays(way, order) for way in one.ways]
    found: dict[str, Any] = {"train_s": one.train_s, "recall20_held_back": one.recall20_held_back}
    for name, share in SHARES.items():

        def value(at: Any, share: float = share) -> float:
            return float(np.mean([fast_recall(scores[at], lengths[at], share) for scores, lengths, _ in ways]))

        found[name] = resampled(value, draws, len(order))
        found[f"{name}_over_ceiling"] = {each: found[name][each] / ceilings[name][each] for each in found[name]}
    _checked(ways[0], found["recall20"]["value"], len(ways))
    taus = [tau_b(_each(scores, lengths), lengths.ravel().tolist()) for scores, lengths, _ in ways]
    found["tau_b"] = float(np.mean(taus))
    found["coverage90"] = float(np.mean([np.mean(lengths <= p90[:, None]) for _, lengths, p90 in ways]))
    return found


def fast_recall(scores: Any, lengths: Any, share: float) -> float:
    """`tailrace.ranker.recall` of trajectories: scores [prompts], lengths [prompts, samples]."""
    flat = lengths.ravel()
    count = tail_count(len(flat), share)
    return float(np.sum(_inside(np.repeat(scores, lengths.shape[1]), count) * _inside(flat, count)) / count)


def ceiling(lengths: Any, share: float, drawn: Any) -> float:
    """Recall of ranking prompts by the mean of one half of their samples, on the other half; both ways, over random halves.

    Args:
        lengths: [prompts, samples].
        share: of the tail.
        drawn: numpy's generator of the halves.
    """
    half, found = lengths.shape[1] // 2, []
    for _ in range(_HALVES):
        mixed = drawn.permuted(lengths, axis=1)
        for known, asked in ((mixed[:, :half], mixed[:, half:]), (mixed[:, half:], mixed[:, :half])):
            found.append(fast_recall(known.mean(axis=1), asked, share))
    return float(np.mean(found))


def interval(draws: Any) -> list[float]:
    """The middle 95 % of resampled values."""
    return [float(value) for value in np.quantile(draws, (0.025, 0.975))]


def _inside(values: Any, count: int) -> Any:
    cut = np.partition(values, len(values) - count)[len(values) - count]
    above, tied = values > cut, values == cut
    return np.where(above, 1.0, np.where(tied, (count - above.sum()) / tied.sum(), 0.0))


def _arrays(way: Predicted, order: Sequence[int]) -> tuple[Any, Any, Any]:
    """Scores, lengths [prompts, samples], p90."""
    scores, lengths, p90 = (np.array([each[index] for index in order]) for each in (way.score, way.lengths, way.p90))
    return scores, lengths, p90


def _each(scores: Any, lengths: Any) -> list[float]:
    return list(np.repeat(scores, lengths.shape[1]).tolist())


def _checked(way: tuple[Any, Any, Any], value: float, ways: int) -> None:
    """The fast figure is the package's own."""
    scores, lengths, _ = way
    own = recall(_each(scores, lengths), lengths.ravel().tolist(), SHARES["recall20"])
    if ways == 1 and abs(own - value) > 1e-9:
        raise RuntimeError(f"found recall20 {value} here and {own} by tailrace.ranker, expected the same")
