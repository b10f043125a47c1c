"""What systems must have in common for their figures to be compared, and where they do not have it."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.pipeline.config.models import RunConfig
from tailrace.report.figures.figures import Figures

KIND, MODEL, DEVICES, BATCH, LONGEST, TASK = "kind", "model", "devices", "batch", "longest response", "task"


def facts(config: RunConfig) -> dict[str, str]:
    """The facts that a configuration says of a real run, in words."""
    task = config.task
    return {
        MODEL: "a small Qwen3" if config.model.path is None else config.model.path.name,
        BATCH: f"{config.pipeline.prompts_per_step:,} prompts x {config.pipeline.samples_per_prompt:,} samples",
        LONGEST: f"{config.rollout.max_tokens:,} tokens",
        TASK: " and ".join(list(task.generated) or [source.path.name for source in task.training.values()])
        or "not known",
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
