"""How the members of a role spent their time, and what they waited for when they did not work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.controller.members import REPLICA, TRAINER
from tailrace.report.fold.timeline import BUBBLES, Doing, Span

WORK = {
    TRAINER: frozenset({Doing.TRAINING, Doing.PUBLISHING}),
    REPLICA: frozenset({Doing.GENERATING, Doing.EVALUATING, Doing.RELEASING, Doing.LENT}),
}


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How the members of a role spent a stretch of time; shares of their time there, 0 to 1."""

    role: str
    members: int
    busy: float
    pulling: float
    idle: float
    out: float
    bubbles: list[tuple[str, float, float]]


def utilisation(spans: Iterable[Span], begin_s: float, end_s: float) -> list[Utilisation]:
    """Per role, between two moments."""
    time: dict[str, dict[Doing, float]] = defaultdict(lambda: defaultdict(float))
    causes: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    members: dict[str, set[str]] = defaultdict(set)
    for span in spans:
        inside = min(span.end_s, end_s) - max(span.start_s, begin_s)
        if inside <= 0 or span.role not in WORK:
            continue
        members[span.role].add(span.member)
        time[span.role][span.doing] += inside
        if span.doing in BUBBLES or span.doing in (Doing.STARTING, Doing.PULLING, Doing.DOWN):
            cause = {Doing.PULLING: "pulling weights", Doing.STARTING: "starting or restarting", Doing.DOWN: "down"}
            causes[span.role][cause.get(span.doing, span.label)] += inside
    rows = []
    for role in (TRAINER, REPLICA):
        total = sum(time[role].values())
        if not total:
            continue
        share = {doing: spent / total for doing, spent in time[role].items()}
        rows.append(
            Utilisation(
                role,
                len(members[role]),
                busy=sum(share.get(doing, 0.0) for doing in WORK[role]),
                pulling=share.get(Doing.PULLING, 0.0),
                idle=sum(share.get(doing, 0.0) for doing in BUBBLES),
                out=share.get(Doing.STARTING, 0.0) + share.get(Doing.DOWN, 0.0),
                bubbles=sorted(
                    ((cause, spent, spent / total) for cause, spent in causes[role].items()), key=lambda row: -row[1]
                ),
            )
        )
    return rows
