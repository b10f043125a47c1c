"""Tailrace's side: the quick start of the app `laminar` on the given model and prompts, in a process of its own.

    python -m trl_comparison.tailrace_side JOB.json OUT_DIR

The quick start as it is, checkpoint of every version included, except for its evaluations, which are off on both sides.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from trl_comparison.job import Job
from trl_comparison.machine import busy_core_seconds

CPU_SAMPLE_S = 1.0


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
        processors.roles = {member["pid"]: str(member["role"]) for member in status.members if member["pid"]}

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
        "pipeline": {"steps": job.steps, "prompts_per_step": job.prompts, "samples_per_prompt": job.samples},
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


class ProcessorTime:
    """Processor seconds of this process and everything below it, by role, sampled once a second."""

    def __init__(self) -> None:
        self.roles: dict[int, str] = {}
        self.samples: list[tuple[float, dict[str, float]]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="processor time", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(CPU_SAMPLE_S):
            self.samples.append((time.time(), {**self._used(), "machine": busy_core_seconds()}))

    def _used(self) -> dict[str, float]:
        import psutil  # type: ignore[import-untyped]  # Ray brings it

        used: dict[str, float] = {}
        own = psutil.Process()
        for process in [own, *own.children(recursive=True)]:
            try:
                times = process.cpu_times()
                name = process.name()
            except psutil.Error:  # it ended between the listing and the question
                continue
            if process.pid == os.getpid():
                role = "driver"
            else:
                role = self.roles.get(process.pid) or ("ray" if not name.startswith("python") else "other python")
            used[role] = used.get(role, 0.0) + times.user + times.system
        return used


if __name__ == "__main__":
    main()
