"""The task and the model that both sides start from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Prepared:
    model: Path
    train: Path
    held_out: Path


def prepare(task: str, directory: Path, seed: int, model: Path | None) -> Prepared:
    """Prompts and held-out problems of a task, and the quick start's warm-started model, from the cache where it is there.

    Args:
        model: taken instead of the warm start, which is the same for every task.
    """
    from tailrace.laminar import APP
    from tailrace.pipeline.config.loading import validate
    from tailrace.pipeline.run import prepare as preparation
    from tailrace.pipeline.run.directory import RunDirectory
    from tailrace.reward.tasks import get_task, write_jsonl

    config = validate([("defaults", APP.defaults()), ("quick start", APP.quickstart()), ("benchmark", {"seed": seed})])
    if model is None:
        said: list[str] = []
        files = RunDirectory.create(directory / "quickstart", config.model_dump(mode="json"))

        def progress(row: object) -> None:
            phase = str(dict(row).get("phase", "")) if isinstance(row, dict) else ""
            if phase and phase not in said:
                said.append(phase)
                print(f"{task}: {phase}", flush=True)

        model = preparation.prepare(config, files, progress).model.absolute()
    found, train, held_out = get_task(task), directory / "train.jsonl", directory / "held_out.jsonl"
    write_jsonl(train, found.generate("train", config.task.train_size, seed))
    write_jsonl(held_out, found.generate("heldout", config.task.held_out_size, seed))
    return Prepared(model.absolute(), train.absolute(), held_out.absolute())
