"""Tailrace's side: the quick start of the app `laminar` on the given model and prompts, in a process of its own.

    python -m trl_comparison.tailrace_side JOB.json OUT_DIR

The quick start as it is, checkpoint of every version included, except for its evaluations, which are off on both sides.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from processor_time import ProcessorTime
from trl_comparison.job import Job


def main() -> None:
    from tailrace.laminar import APP
    from tailrace.pipeline.config.loading import validate
    from tailrace.pipeline.run.directory import RunDirectory
    from tailrace.pipeline.run.figures.status import RunStatus
    from tailrace.pipeline.run.launching.launch import launch

    job, out = Job.read(Path(sys.argv[1])), Path(sys.argv[2])
    config = validate([("defaults", APP.defaults()), ("quick start", APP.quickstart()), ("benchmark", settings(job))])
    directory = RunDirectory.create(out / "run", config.model_dump(mode="json"))
    processors = ProcessorTime()

    def listen(status: RunStatus) -> None:
        processors.members(status.members)

    processors.start()
    launch(config, directory, listen)
    processors.stop()
    result = outcome(directory, job, processors)
    (out / "result.json").write_text(json.dumps(result, indent=1))


def settings(job: Job) -> dict[str, Any]:
    """What the comparison sets over the quick start."""
    options = {
        "lr": job.lr,
        "warmup_steps": job.warmup_steps,
        "betas": list(job.betas),
        "weight_decay": job.weight_decay,
        "grad_clip_norm": job.grad_clip_norm,
        "temperature": job.temperature,
        "normalisation": "token",
    }
    return {
        "seed": job.seed,
        "task": {"name": None, "train": job.train},
        "model": {"path": job.model, "small": None},
        "pipeline": {
            "steps": job.steps,
            "prompts_per_step": job.prompts,
            "samples_per_prompt": job.samples,
            # in the proportions of the quick start: two batches ahead, half a batch on each of its two replicas
            "buffer_prompts": 2 * job.prompts,
            "prompts_per_replica": max(1, job.prompts // 2),
        },
        "rollout": {"temperature": job.temperature, "max_tokens": job.max_tokens},
        "trainer": {"options": options, "loss": {"name": "dapo", "clip_low": job.clip_low, "clip_high": job.clip_high}},
        "evaluation": {"every": 0, "controls": False},
        "checkpoint": {"keep": job.steps + 2},
    }


def outcome(directory: Any, job: Job, processors: ProcessorTime) -> dict[str, Any]:
    """Steps on a clock that starts when the first replica serves its first version, and what the members did meanwhile."""
    from tailrace.report.record import read_record

    record = read_record(directory)
    zero = record.first_work_s
    # Metrics carry the run's clock and the time of day; processor time was sampled by the latter.
    offset = record.steps[0]["at"] - record.steps[0]["t"]
    steps = [
        {
            "step": row["step"],
            "at_s": row["t"] - zero,
            "tokens": int(row["tokens"]),
            "reward": row["reward_mean"],
            "longest": row["response_tokens_max"],
            **{name: row[name] for name in ("step_s", "fetch_s", "wall_s", "forward_s", "backward_s", "optimizer_s")},
            "staleness_mean": row.get("staleness_mean"),
        }
        for row in record.steps
    ]
    snapshots = [step for step in range(1, job.steps + 1) if step % job.snapshot_every == 0 or step == job.steps]
    return {
        "steps": steps,
        "models": {step: str(directory.checkpoints / str(step)) for step in snapshots},
        "spans": [
            [span.role, span.member, str(span.doing), span.start_s - zero, span.end_s - zero, span.label]
            for span in record.folds.timeline.spans
        ],
        "cpu": [[at - offset - zero, used] for at, used in processors.samples],
        "summary": {key: value for key, value in (record.summary or {}).items() if not isinstance(value, dict)},
    }


if __name__ == "__main__":
    main()
