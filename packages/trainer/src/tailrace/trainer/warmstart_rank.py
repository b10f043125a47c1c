"""One process of a warm start: ``python -m tailrace.trainer.warmstart_rank WORK RANK WORLD_SIZE``, started by its caller."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailrace.processes import at_end_of
from tailrace.trainer.demonstrations import TokenExample, encode
from tailrace.trainer.small_model import SmallModel, build_small
from tailrace.trainer.tokenizer import train_tokenizer
from tailrace.trainer.warmstart import WarmStartConfig, WarmStartJob, trainer_config

if TYPE_CHECKING:
    from tailrace.trainer.worker import TrainerWorker

_REPORT_S = 0.5


def main() -> None:
    """Do the job in WORK/job.json; rank 0 leaves a model in WORK/model."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the caller ends us
    at_end_of(0, lambda: os._exit(1))  # the caller is gone
    work, rank, world_size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    data = json.loads((work / "job.json").read_text(encoding="utf-8"))
    if data["kind"] == "warm_start":
        _warm_start(work, rank, world_size, WarmStartJob.from_json(data))
    else:
        _continue(work, rank, world_size, data)


def _warm_start(work: Path, rank: int, world_size: int, job: WarmStartJob) -> None:
    # Every rank builds the same model, which is faster than waiting for one rank and needs no extra rendezvous.
    start = work / f"start-{rank}"
    train_tokenizer(job.texts(), start, **asdict(job.tokenizer))
    _build(start, job.model, job.config.seed)
    config = job.config
    stages = [(stage.until_step, encode(start, stage.examples)) for stage in job.stages]
    worker = _join(start, config, work, rank, world_size)
    report = _Reporter(rank, config.steps)
    batches: Iterator[list[TokenExample]] = iter(())
    current = -1
    for step in range(config.steps):
        stage = next(index for index, (until, _) in enumerate(stages) if step < until)
        if stage != current:
            current, batches = (
                stage,
                shuffled_batches(stages[stage][1], config.batch, config.seed + stage, config.bucket),
            )
        metrics = worker.sft_step(next(batches), lr=config.lr_at(step))
        report(step, metrics)
    _finish(worker, work)


def _continue(work: Path, rank: int, world_size: int, data: dict[str, Any]) -> None:
    from torch import distributed, tensor

    config = WarmStartConfig(**data["config"] | {"betas": tuple(data["config"]["betas"])})
    source = Path(data["model_dir"])
    batches = shuffled_batches(encode(source, data["examples"]), config.batch, config.seed, config.bucket)
    worker = _join(source, config, work, rank, world_size)
    report = _Reporter(rank, None, data["seconds"])
    started = time.monotonic()
    step = 0
    while True:
        # Ranks' clocks differ, so all stop when rank 0 says so.
        over = tensor([int(time.monotonic() - started >= data["seconds"])])
        distributed.broadcast(over, 0)
        if over.item():
            break
        lr = data["lr"] * min(1.0, (step + 1) / max(1, config.warmup_steps))
        report(step, worker.sft_step(next(batches), lr=lr))
        step += 1
    _finish(worker, work)


def shuffled_batches(
    examples: Sequence[TokenExample], batch: int, seed: int, bucket: int = 1
) -> Iterator[list[TokenExample]]:
    """Endless batches; every example comes once before any comes again.

    Args:
        examples: the examples as token ids.
        batch: examples in a batch.
        seed: seed of the order.
        bucket: number of batches drawn together and divided by length of the response.
    """
    draw = random.Random(seed)
    pending: list[TokenExample] = []
    while True:
        while len(pending) < batch * bucket:
            pending += draw.sample(examples, len(examples))
        drawn = pending[: batch * bucket]
        del pending[: batch * bucket]
        if bucket > 1:
            drawn.sort(key=lambda pair: len(pair[1]))
        starts = list(range(0, len(drawn), batch))
        if bucket > 1:
            draw.shuffle(starts)
        for start in starts:
            yield drawn[start : start + batch]


def _build(start: Path, model: SmallModel, seed: int) -> None:
    vocabulary = json.loads((start / "tokenizer.json").read_text(encoding="utf-8"))
    size = len(vocabulary["model"]["vocab"].keys() | {token["content"] for token in vocabulary["added_tokens"]})
    build_small(start, model, vocab_size=size, seed=seed)


def _join(source: Path, config: WarmStartConfig, work: Path, rank: int, world_size: int) -> TrainerWorker:
    from tailrace.trainer.worker import TrainerWorker

    rendezvous = f"file://{work}/rendezvous" if world_size > 1 else None
    settings = trainer_config(asdict(config))
    worker = TrainerWorker(source, settings, rank=rank, world_size=world_size, rendezvous=rendezvous)
    if config.optimizer == "muon":
        worker.use_muon(config.muon_lr_scale)
    return worker


def _finish(worker: TrainerWorker, work: Path) -> None:
    worker.export(work / "model")
    worker.close()


class _Reporter:
    """Prints progress lines on rank 0, a few per second."""

    def __init__(self, rank: int, steps: int | None, seconds: float = 0.0) -> None:
        self._rank, self._steps, self._seconds = rank, steps, seconds
        self._started = self._last = time.monotonic()
        self._tokens = 0.0

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        now = time.monotonic()
        self._tokens += metrics["tokens"]
        finished = self._steps is not None and step + 1 == self._steps
        if self._rank or (now - self._last < _REPORT_S and not finished):
            return
        self._last = now
        elapsed = now - self._started
        line: dict[str, Any] = {"step": step + 1, "loss": metrics["loss"], "lr": metrics["lr"]}
        if self._steps is None:
            left = max(0.0, self._seconds - elapsed)
        else:
            line["steps"] = self._steps
            left = elapsed / (step + 1) * (self._steps - step - 1)
        line |= {"tokens_per_s": self._tokens / elapsed, "seconds": elapsed, "seconds_left": left}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The work is on disk. On a normal exit, gloo's threads sometimes abort the interpreter ("terminate called").
    os._exit(0)
