"""Figures over several seeds as plain data, and as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from length_ranking.figures import SHARES, interval

PAPER = {
    "Qwen2.5-7B": {"recall20": 0.87, "recall10": 0.82, "recall5": 0.76},
    "Qwen2.5-3B": {"recall20": 0.85, "recall10": 0.79, "recall5": 0.72},
    "Qwen2.5-1.5B": {"recall20": 0.81, "recall10": 0.75, "recall5": 0.68},
}
"""StreamRL, Table 4: of prompts with one recorded response each, by the base model of the ranker."""
BASELINES = ("random", "prompt-length", "family-mean", "lexical")
"""Methods that predict a prompt of which nothing is known yet."""
AUTO = "auto"


def over_seeds(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of `figures` over seeds, with the range over seeds and the middle 95 % over resampled prompts.

    Args:
        found: what `figures` gave for each seed, with the same methods.
    """
    names = [name for name in found[0]["methods"] if all(name in one["methods"] for one in found)]
    methods = {name: _method([one["methods"][name] for one in found]) for name in names}
    best = max((name for name in names if name in BASELINES), key=lambda name: methods[name]["recall20"]["mean"])
    ahead = np.mean([_draws(one, AUTO) - _draws(one, best) for one in found], axis=0)
    return {
        "seeds": len(found),
        "prompts": [one["prompts"] for one in found],
        "ceiling": {name: _spread([one["ceiling"][name] for one in found]) for name in SHARES},
        "methods": methods,
        "best_baseline": best,
        "auto_ahead_of_it": {"mean": float(np.mean(ahead)), "interval": interval(ahead)},
    }


def table(title: str, found: Mapping[str, Any]) -> str:
    """Markdown: a row for each method, and the ceiling."""
    lines = [
        f"{title}: {' / '.join(map(str, found['prompts']))} prompts, {found['seeds']} seeds",
        "",
        "| method | recall 20 % | 10 % | 5 % | over the ceiling, 20 % | tau-b | within p90 | trained |",
        "|---" * 8 + "|",
    ]
    for name, one in found["methods"].items():
        cells = [shown(one[share]) for share in SHARES]
        cells += [shown(one["recall20_over_ceiling"]), f"{one['tau_b']:.2f}", f"{one['coverage90']:.2f}"]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {one['train_s']:.0f} s |")
    of = [shown(found["ceiling"][share]) for share in SHARES]
    lines.append(f"| ceiling | {' | '.join(of)} | 1 | | | |")
    ahead = found["auto_ahead_of_it"]
    low, high = ahead["interval"]
    lines += ["", f"auto is ahead of {found['best_baseline']} by {ahead['mean']:+.3f} ({low:+.3f} to {high:+.3f})"]
    return "\n".join(lines)


def version_table(name: str, runs: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """Markdown: a row for each version, means over the trainings."""
    lines = [
        f"`{name}`, trained at version 0, {len(runs)} seeds, {runs[0][0]['prompts']} prompts held out",
        "",
        "| version | tokens | ceiling | by old samples | recall 20 %, alone | updated | by | in p90 | updated | drifted |",
        "|---" * 10 + "|",
    ]
    for rows in zip(*runs, strict=True):
        draws = [np.mean([row[which]["draws"] for row in rows], axis=0) for which in ("alone", "updated")]
        cells = [f"{rows[0]['mean_tokens']:.1f}", f"{np.mean([row['ceiling20'] for row in rows]):.2f}"]
        cells.append(f"{rows[0]['by_old_samples']:.2f}")
        means = [float(np.mean([row[which]["recall20"] for row in rows])) for which in ("alone", "updated")]
        cells += [shown({"mean": mean, "interval": interval(each)}) for mean, each in zip(means, draws, strict=True)]
        low, high = interval(draws[1] - draws[0])
        cells.append(f"{means[1] - means[0]:+.3f} ({low:+.3f} to {high:+.3f})")
        cells += [f"{np.mean([row[which]['coverage90'] for row in rows]):.2f}" for which in ("alone", "updated")]
        cells.append(f"{sum(row['drifted'] for row in rows)} of {len(rows)}")
        lines.append(f"| {rows[0]['version']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def shown(spread: Mapping[str, Any]) -> str:
    """A mean with its interval."""
    low, high = spread["interval"]
    return f"{spread['mean']:.2f} ({low:.2f}-{high:.2f})"


def _method(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = [name for share in SHARES for name in (share, f"{share}_over_ceiling")]
    plain = {key: float(np.mean([one[key] for one in found])) for key in ("tau_b", "coverage90", "train_s")}
    return {**{name: _spread([one[name] for one in found]) for name in names}, **plain}


def _spread(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    values = [one["value"] for one in found]
    draws = np.mean([one["draws"] for one in found], axis=0)
    return {"mean": float(np.mean(values)), "seeds": values, "interval": interval(draws)}


def _draws(one: Mapping[str, Any], name: str) -> Any:
    return one["methods"][name]["recall20"]["draws"]
