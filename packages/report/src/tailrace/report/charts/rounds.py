"""Rounds: how long each took and what it threw away, and which sources its prompts came from."""

from __future__ import annotations

from collections import Counter

from tailrace.pipeline.config.task import TaskConfig
from tailrace.pipeline.run.figures.rounds import PastRound
from tailrace.report.charts.chart import LAG_COLORS, Chart, axis, bars, step_axis
from tailrace.report.reason_words import percent
from tailrace.report.record import Record
from tailrace.trajstore import MixOrder

_COLORS = {"short": "$generating", "long": "$pulling"}


def round_charts(record: Record) -> list[Chart]:
    """Seconds and waste of each round, and its mix of sources if there are several; none where there are no rounds."""
    rounds = record.folds.rounds.rounds
    if not rounds:
        return []
    charts = [_seconds(rounds), _waste(rounds)]
    names = sources(record.config.task)
    return [*charts, _mix(rounds, record, names)] if len(names) > 1 else charts


def sources(task: TaskConfig) -> list[str]:
    """The names of the sources of a task's prompts, in their order."""
    return list(task.generated) or [source.path.name for source in task.training.values()]


def _seconds(rounds: list[PastRound]) -> Chart:
    data = []
    for kind, color in _COLORS.items():
        chosen = [(place, one) for place, one in enumerate(rounds, 1) if one.kind == kind]
        if chosen:
            seconds = [one.given_s - one.began_s for _, one in chosen]
            data.append(bars([place for place, _ in chosen], seconds, f"{kind} ({len(chosen)})", color))
    layout = {"xaxis": step_axis(len(rounds)), "yaxis": axis("seconds from its first start to its step")}
    note = "A short round keeps the first groups to be complete; a long one holds those that lost, and waits for all."
    return Chart("rounds", "Rounds", data, layout, note)


def _waste(rounds: list[PastRound]) -> Chart:
    places = list(range(1, len(rounds) + 1))
    data = [
        bars(places, [one.tokens for one in rounds], "trained on", "$training"),
        bars(places, [one.wasted for one in rounds], "thrown away", "$down"),
    ]
    trained, wasted = sum(one.tokens for one in rounds), sum(one.wasted for one in rounds)
    share = percent(wasted / (trained + wasted)) if trained + wasted else "none"
    layout = {"xaxis": step_axis(len(rounds)), "yaxis": axis("response tokens"), "barmode": "stack"}
    return Chart("rounds-waste", "Tokens of each round", data, layout, f"{share} of the tokens were thrown away.")


def _mix(rounds: list[PastRound], record: Record, names: list[str]) -> Chart:
    order = MixOrder(record.config.task.shares, shuffle_seed=record.config.shuffle_seed)
    counts = [Counter(order.pool(prompt) for prompt in one.prompts) for one in rounds]
    places = list(range(1, len(rounds) + 1))
    data = [
        bars(places, [found[pool] / found.total() for found in counts], name, LAG_COLORS[pool % len(LAG_COLORS)])
        for pool, name in enumerate(names)
    ]
    layout = {"xaxis": step_axis(len(rounds)), "yaxis": axis("share of groups", tickformat=".0%"), "barmode": "stack"}
    return Chart("rounds-mix", "Sources of what was trained on", data, layout)
