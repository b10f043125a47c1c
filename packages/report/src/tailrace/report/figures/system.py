"""The figures of a system that matter, of a simulated one or of a real run, under the same definitions."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.contracts import shown
from tailrace.controller.members import REPLICA, TRAINER
from tailrace.pipeline.config.models import RunConfig
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


KIND, MODEL, DEVICES, BATCH, LONGEST, TASK = "kind", "model", "devices", "batch", "longest response", "task"


@dataclass(frozen=True, kw_only=True)
class Figures:
    """A system in steady state: what comes before, start-up and warm-up, is left out. None is not known.

    Args:
        name: of the system.
        simulated: or measured in a real run.
        fleet: its devices in words.
        gpus: devices; 0 is none, such as on processor cores alone.
        measured_s: from the end of the warm-up to the last batch, on the run's clock.
        batches: that were measured.
        tokens_per_s: trained on, prompts included.
        response_tokens_per_s: trained on, prompts left out.
        generated_tokens_per_s: response tokens that the replicas generated.
        step_s: mean time between two batches.
        staleness_mean, staleness_max: over trajectories trained on.
        staleness: these trajectories by staleness.
        roles: how the members of each role spent the time.
        running: trajectories in a replica's batch, averaged over the time in which there is one.
        kv_share: of the KV cache in use, averaged over the same.
        prefill_share: of a busy replica's time.
        moves_per_batch: replicas emptied by relocation, over the whole run; and over the same, pulls that interrupted
            work, and trajectories that were taken from a replica for another.
        preemptions: trajectories put back for want of KV cache.
        latency_mean_s, latency_max_s: of a trajectory, from its first routing to its last token.
        devices: number of devices by name; empty if that is not known.
        price_per_hour: of all devices, in the user's currency; None without prices.
        goal: the training of `finish_s` in words, such as "10,000 steps"; empty for none.
        finish_s: seconds that it takes at this speed.
        facts: what must be alike where systems are compared, by name.
        notes: what a reader must know.
    """

    name: str
    simulated: bool
    fleet: str
    gpus: float
    measured_s: tuple[float, float]
    batches: int
    tokens_per_s: float | None = None
    response_tokens_per_s: float
    generated_tokens_per_s: float
    step_s: float
    staleness_mean: float
    staleness_max: int
    staleness: Mapping[int, int]
    roles: Sequence[Utilisation]
    running: float | None
    kv_share: float | None
    prefill_share: float | None = None
    moves_per_batch: float
    interrupting_pulls_per_batch: float
    migrated_per_batch: float
    preemptions: int | None = None
    latency_mean_s: float | None = None
    latency_max_s: float | None = None
    devices: Mapping[str, int] = field(default_factory=dict)
    price_per_hour: float | None = None
    goal: str = ""
    finish_s: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = field(default=())

    @property
    def cost_per_million(self) -> float | None:
        """The price of a million tokens trained on, prompts included; None without prices."""
        return None if self.price_per_hour is None else self._over_million(self.price_per_hour)

    @property
    def device_hours_per_million(self) -> dict[str, float]:
        """Hours of each device for a million tokens trained on, by its name; empty where that is not known."""
        each = {name: self._over_million(count) for name, count in self.devices.items()}
        return {name: hours for name, hours in each.items() if hours is not None}

    @property
    def price_to_finish(self) -> float | None:
        """The price of the training of `finish_s`; None without prices."""
        if self.price_per_hour is None or self.finish_s is None:
            return None
        return self.price_per_hour * self.finish_s / 3600

    def _over_million(self, per_hour: float) -> float | None:
        return per_hour / 3600 / self.tokens_per_s * 1e6 if self.tokens_per_s else None

    def role(self, role: str) -> Utilisation | None:
        """How a role spent its time; None if nothing was seen of it."""
        return next((used for used in self.roles if used.role == role), None)

    def busy(self, role: str) -> float | None:
        """Share of a role's time that is work."""
        used = self.role(role)
        return None if used is None else used.busy

    def to_json(self) -> dict[str, Any]:
        """The figures as plain data."""
        plain = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        del plain["roles"], plain["measured_s"]
        return {
            **plain,
            "staleness": {str(lag): count for lag, count in self.staleness.items()},
            "busy": {role: self.busy(role) for role in (TRAINER, REPLICA)},
            "bubbles": {used.role: {cause: share for cause, _, share in used.bubbles} for used in self.roles},
            "cost_per_million_tokens": self.cost_per_million,
            "device_hours_per_million_tokens": self.device_hours_per_million,
            "price_to_finish": self.price_to_finish,
            "notes": list(self.notes),
        }


# What systems must have in common for their figures to be compared, and where they do not have it.


def facts(config: RunConfig) -> dict[str, str]:
    """The facts that a configuration, which may be somebody else's, says of a real run, in words."""
    task = config.task
    found = " and ".join(list(task.generated) or [source.path.name for source in task.training.values()])
    return {
        MODEL: "a small Qwen3" if config.model.path is None else shown(config.model.path.name),
        BATCH: f"{config.pipeline.prompts_per_step:,} prompts x {config.pipeline.samples_per_prompt:,} samples",
        LONGEST: f"{config.rollout.max_tokens:,} tokens",
        TASK: shown(found) or "not known",
    }


def differences(systems: Sequence[Figures]) -> list[str]:
    """One line for each fact in which the systems differ; empty if like is compared with like."""
    lines = []
    for fact in (KIND, MODEL, DEVICES, BATCH, LONGEST, TASK):
        said: dict[str, list[str]] = {}
        for one in systems:
            said.setdefault(_said(one, fact), []).append(one.name)
        if len(said) > 1:
            lines.append(f"Unlike in {fact}: " + "; ".join(f"{', '.join(who)}: {text}" for text, who in said.items()))
    return lines


def _said(figures: Figures, fact: str) -> str:
    if fact == KIND:
        return "simulated" if figures.simulated else "a real run"
    if fact == DEVICES and figures.devices:
        return ", ".join(f"{count:,} {name}" for name, count in figures.devices.items())
    if fact == DEVICES:
        return f"{figures.gpus:g} GPUs" if figures.gpus else "processor cores"
    return figures.facts.get(fact, "not known")
