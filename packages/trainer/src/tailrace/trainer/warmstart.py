"""Supervised warm start and continued fine-tuning, in separate processes, so that the caller needs no torch.

    caller: job.json -> starts one process per rank -> reads progress lines of rank 0 -> puts the result in place
    rank:   reads job.json -> (tokenizer, model) -> supervised steps -> rank 0 writes the model directory

Ranks end when their standard input closes, so that none outlives its caller, however the caller ends.
Run by hand: ``python -m tailrace.trainer.warmstart JOB.json OUT_DIR CACHE_DIR``; JOB.json is the output of
`WarmStartJob.to_json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from subprocess import PIPE
from typing import Any, Literal

from tailrace.processes import Child, ChildEndedError, ChildTimeoutError, LineError
from tailrace.processes.child import last_line
from tailrace.trainer.checkpoint_files import complete, put_in_place, sync, verify
from tailrace.trainer.config import TrainerConfig
from tailrace.trainer.demonstrations import Demonstration, texts_of
from tailrace.trainer.errors import (
    CheckpointError,
    TrainerConfigError,
    WarmStartCancelledError,
    WarmStartError,
    WarmStartTimeoutError,
)
from tailrace.trainer.small_model import SmallModel
from tailrace.trainer.tokenizer import OPERATORS, SPECIAL, TAGS

_POLL_S = 0.1
_GRACE_S = 5.0
_TAIL_BYTES = 4000


def run_ranks(
    work: Path,
    job: dict[str, Any],
    processes: int,
    progress: Callable[[dict[str, Any]], None] | None,
    cancel: Callable[[], bool] | None,
    timeout_s: float,
) -> Path:
    """Run a job in `processes` ranks with `work` as their directory; see `warm_start` for the arguments and the errors.

    Returns:
        The model directory that rank 0 wrote, inside `work`.
    """
    built = work / "model"
    (work / "job.json").write_text(json.dumps(job), encoding="utf-8")
    deadline = time.monotonic() + timeout_s
    ranks: list[Child] = []
    threads = str(job["config"]["threads"])
    environment = os.environ | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    try:
        for rank in range(processes):
            command = [sys.executable, "-m", "tailrace.trainer.warmstart_rank", str(work), str(rank), str(processes)]
            with (work / f"rank-{rank}.log").open("wb") as log:
                said = PIPE if rank == 0 else log
                ranks.append(Child(command, stdin=PIPE, stdout=said, stderr=log, environment=environment))
        while True:
            codes = [child.poll() for child in ranks]
            _report(ranks[0], progress)
            failed = [rank for rank, code in enumerate(codes) if code]
            if failed:
                raise WarmStartError(_why(work, failed[0], codes[failed[0]]))
            if all(code == 0 for code in codes):
                return built
            if cancel is not None and cancel():
                raise WarmStartCancelledError("the warm start was cancelled by its caller")
            if time.monotonic() > deadline:
                raise WarmStartTimeoutError(f"waited {timeout_s} s for {processes} warm-start processes to finish")
            time.sleep(_POLL_S)
    finally:
        for child in ranks:
            child.terminate()
        for child in ranks:
            child.end(_GRACE_S)


def _report(rank: Child, progress: Callable[[dict[str, Any]], None] | None) -> None:
    """Tell of all that the rank has said so far; libraries may print between."""
    with suppress(ChildTimeoutError, ChildEndedError):
        while True:
            try:
                said = rank.receive(0.0)
            except LineError:
                continue
            if progress is not None:
                progress(said)


def _why(work: Path, rank: int, code: int | None) -> str:
    with (work / f"rank-{rank}.log").open("rb") as log:
        said = last_line(log) or "it printed nothing"  # first, since a command shows one line
        tail = log.read()[-_TAIL_BYTES:].decode(errors="replace").strip()
    return f"rank {rank} of the warm start ended with code {code}: {said}\n{tail}"


logger = logging.getLogger(__name__)
RECIPE_FORMAT = 2
"""Part of the cache key. Raise it when the same inputs give another model."""
Progress = Callable[[dict[str, Any]], None]
Cancel = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class DemonstrationStage:
    """A stage of the warm start: the examples to learn from until a step.

    Args:
        until_step: the first step after the stage.
        examples: prompts with their responses; the end token is appended to each turn of a response.
    """

    until_step: int
    examples: Sequence[Demonstration]


@dataclass(frozen=True, slots=True)
class TokenizerShape:
    """What `tailrace.trainer.tokenizer.train_tokenizer` makes.

    Args:
        vocab_size: most tokens, including special tokens and tags.
        tags: tokens that are never split.
        split_digits: each digit is a token of its own.
        operators: characters that are never merged with others.
        attach_space: a space in front of a digit or an operator may become part of its token.
        words: every word with the space in front of it is one token; the options from `split_digits` on do not apply.
    """

    vocab_size: int = 149
    tags: tuple[str, ...] = TAGS
    split_digits: bool = True
    operators: str = OPERATORS
    attach_space: bool = False
    words: bool = False

    def __post_init__(self) -> None:
        least = len(SPECIAL) + len(self.tags)
        if self.vocab_size < least:
            raise TrainerConfigError(
                f"found vocab_size = {self.vocab_size}, expected at least {least}: the special tokens and the tags"
            )


@dataclass(frozen=True, slots=True)
class WarmStartConfig:
    """Settings of the supervised steps.

    Args:
        steps: optimizer steps.
        batch: examples of one step, over all processes.
        optimizer: ``"adamw"``, or ``"muon"`` for the layers' matrices, which learns arithmetic in half the steps but needs
            one process.
        muon_lr_scale: Muon's learning rate as a multiple of `lr`.
        lr: peak learning rate. After the warm-up and `hold` it falls linearly to `lr_end`.
        hold: share of the steps after which the learning rate begins to fall.
        bucket: number of batches drawn together and divided by length, so that each needs little padding.
        lr_end: learning rate of the last step.
        warmup_steps: steps over which the learning rate rises linearly to the peak.
        betas: AdamW's betas.
        weight_decay: AdamW's weight decay.
        grad_clip_norm: largest 2-norm of the gradient; 0 does not clip.
        micro_batch_tokens: most tokens of one forward pass.
        processes: data-parallel processes.
        threads: CPU threads of each process.
        seed: seed of the weights and of the order of examples.
        device: the device, ``"cpu"`` or ``"cuda"``; ``"auto"`` takes CUDA if available.
    """

    steps: int = 1150
    batch: int = 32
    optimizer: Literal["adamw", "muon"] = "adamw"
    muon_lr_scale: float = 5.0
    lr: float = 4e-3
    lr_end: float = 0.0
    hold: float = 0.0
    bucket: int = 1
    warmup_steps: int = 20
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    grad_clip_norm: float = 1.0
    micro_batch_tokens: int = 2048
    processes: int = 1
    threads: int = 1
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.optimizer not in ("adamw", "muon"):
            raise TrainerConfigError(f"found optimizer = {self.optimizer!r}, expected adamw or muon")
        if self.optimizer == "muon" and self.processes > 1:
            raise TrainerConfigError(
                f"found muon with processes = {self.processes}, expected 1: it needs whole matrices"
            )
        for name in ("steps", "batch", "processes", "threads", "bucket"):
            if getattr(self, name) < 1:
                raise TrainerConfigError(f"found {name} = {getattr(self, name)}, expected at least 1")

    def lr_at(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        held = max(self.warmup_steps, self.hold * self.steps)
        left = min(1.0, (self.steps - step) / max(1.0, self.steps - held))
        return self.lr_end + (self.lr - self.lr_end) * left


@dataclass(frozen=True, slots=True)
class WarmStartJob:
    """Everything that determines the result of a warm start."""

    stages: Sequence[DemonstrationStage]
    config: WarmStartConfig = field(default_factory=WarmStartConfig)
    model: SmallModel = field(default_factory=SmallModel)
    tokenizer: TokenizerShape = field(default_factory=TokenizerShape)
    tokenizer_texts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.stages or not all(stage.examples for stage in self.stages):
            raise TrainerConfigError("found a stage without examples, or no stage, expected at least one of each")
        ends = [stage.until_step for stage in self.stages]
        if any(after <= before for before, after in zip([0, *ends], ends, strict=False)):
            raise TrainerConfigError(f"found stages that end at steps {ends}, expected them to rise from 1")
        if ends[-1] < self.config.steps:
            raise TrainerConfigError(
                f"found the last stage to end at step {ends[-1]}, expected at least config.steps = {self.config.steps}"
            )

    def texts(self) -> Sequence[str]:
        """The texts that the tokenizer learns from: `tokenizer_texts`, or all examples."""
        return self.tokenizer_texts or [
            text for stage in self.stages for example in stage.examples for text in texts_of(example)
        ]

    def to_json(self) -> dict[str, Any]:
        """The job as plain values, for `from_json`."""
        return {"kind": "warm_start", **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WarmStartJob:
        """The job from the values of `to_json`."""
        config, tokenizer = dict(data["config"]), dict(data["tokenizer"])
        config["betas"], tokenizer["tags"] = tuple(config["betas"]), tuple(tokenizer["tags"])
        return cls(
            [
                DemonstrationStage(stage["until_step"], [(p, r) for p, r in stage["examples"]])
                for stage in data["stages"]
            ],
            WarmStartConfig(**config),
            SmallModel(**data["model"]),
            TokenizerShape(**tokenizer),
            data["tokenizer_texts"],
        )

    def key(self) -> str:
        """Hash of everything that determines the result."""
        described = json.dumps({"recipe_format": RECIPE_FORMAT, **self.to_json()}, sort_keys=True)
        return hashlib.sha256(described.encode()).hexdigest()[:24]


@dataclass(frozen=True, slots=True)
class WarmStartResult:
    """The result of a warm start.

    Args:
        directory: the model directory.
        cached: whether it came from the cache.
        seconds: seconds that the call took.
    """

    directory: Path
    cached: bool
    seconds: float


def warm_start(
    out_dir: str | Path,
    cache_dir: str | Path,
    *,
    demonstrations: Sequence[DemonstrationStage],
    config: WarmStartConfig | None = None,
    model: SmallModel | None = None,
    tokenizer: TokenizerShape | None = None,
    tokenizer_texts: Sequence[str] = (),
    progress: Progress | None = None,
    cancel: Cancel | None = None,
    timeout_s: float = 3600.0,
) -> WarmStartResult:
    """Build a tokenizer and a small model, fine-tune it on demonstrations and put its directory at `out_dir`.

    The result is cached under `cache_dir`, with everything that determines it as the key. A second call copies it; a damaged
    entry is built again, with a warning.

    Args:
        out_dir: model directory to create; replaced if it exists.
        cache_dir: cache directory; runs may share it.
        demonstrations: stages in order; the last must reach ``config.steps``.
        config: settings of the steps.
        model: shape of the model.
        tokenizer: settings of the tokenizer.
        tokenizer_texts: texts that the tokenizer learns from; the demonstrations if empty.
        progress: called with ``step``, ``steps``, ``loss`` (nats per response token), ``lr``, ``tokens_per_s`` (response
            tokens), ``seconds``, ``seconds_left``.
        cancel: polled several times a second; True ends the work.
        timeout_s: deadline of the whole call.

    Raises:
        WarmStartError: a process failed; the message has the end of its output.
        WarmStartTimeoutError: the deadline passed.
        WarmStartCancelledError: `cancel` returned True.
    """
    job = WarmStartJob(
        demonstrations,
        config or WarmStartConfig(),
        model or SmallModel(),
        tokenizer or TokenizerShape(),
        tokenizer_texts,
    )
    started = time.monotonic()
    cache = Path(cache_dir).absolute()
    cache.mkdir(parents=True, exist_ok=True)
    entry = cache / job.key()
    cached = _intact(entry)
    if not cached:
        described = job.to_json() | {"tokenizer_texts": list(job.texts())}
        with tempfile.TemporaryDirectory(dir=cache, prefix=".work-") as work:
            built = run_ranks(Path(work), described, job.config.processes, progress, cancel, timeout_s)
            complete(built, entry, {"version": 0, "recipe_format": RECIPE_FORMAT})
    _copy(entry, Path(out_dir).absolute())
    return WarmStartResult(Path(out_dir), cached, time.monotonic() - started)


def continue_sft(
    model_dir: str | Path,
    out_dir: str | Path,
    *,
    examples: Sequence[Demonstration],
    seconds: float,
    lr: float,
    config: WarmStartConfig | None = None,
    progress: Progress | None = None,
    cancel: Cancel | None = None,
    timeout_s: float | None = None,
) -> WarmStartResult:
    """Fine-tune a model for a given time at a constant learning rate, to compare with RL on the same compute.

    Args:
        model_dir: model and tokenizer to start from.
        out_dir: model directory to create; replaced if it exists.
        examples: prompts with their responses, as in `DemonstrationStage`.
        seconds: seconds of training, without loading and saving.
        lr: learning rate, after ``config.warmup_steps``.
        config: batch, processes, seed and optimizer; its steps, lr and decay do not apply.
        progress: see `warm_start`; ``steps`` is absent.
        cancel: see `warm_start`.
        timeout_s: deadline of the whole call; None: `seconds` and ten minutes.

    Raises:
        WarmStartError, WarmStartTimeoutError, WarmStartCancelledError: see `warm_start`.
    """
    started = time.monotonic()
    if not examples:
        raise TrainerConfigError("found no examples, expected at least one")
    chosen = config or WarmStartConfig()
    target = Path(out_dir).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    job = {
        "kind": "continue",
        "model_dir": str(Path(model_dir).absolute()),
        "examples": [list(pair) for pair in examples],
        "seconds": seconds,
        "lr": lr,
        "config": asdict(chosen),
    }
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".work-") as work:
        deadline = seconds + 600.0 if timeout_s is None else timeout_s
        built = run_ranks(Path(work), job, chosen.processes, progress, cancel, deadline)
        complete(built, target, {"version": 0, "recipe_format": RECIPE_FORMAT})
    return WarmStartResult(Path(out_dir), False, time.monotonic() - started)


def trainer_config(config: Mapping[str, Any]) -> TrainerConfig:
    """The trainer's settings for supervised steps."""
    names = ("betas", "weight_decay", "grad_clip_norm", "micro_batch_tokens", "threads", "seed", "device", "lr")
    return TrainerConfig(**{name: config[name] for name in names} | {"betas": tuple(config["betas"])})


def _intact(entry: Path) -> bool:
    if not entry.exists():
        return False
    try:
        verify(entry)
    except CheckpointError as error:
        logger.warning("the cached warm start %s is damaged and is built again: %s", entry.name, error)
        return False
    return True


def _copy(entry: Path, out_dir: Path) -> None:
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=out_dir.parent, prefix=f".{out_dir.name}."))
    try:
        for path in entry.iterdir():
            shutil.copyfile(path, partial / path.name)
            sync(partial / path.name)
        partial.chmod(0o755)
        put_in_place(partial, out_dir)
    finally:
        if partial.exists():
            shutil.rmtree(partial)


def main() -> None:
    """Command line: build the model that a job file describes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("job", type=Path, help="JSON file, see WarmStartJob.to_json")
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("cache_dir", type=Path)
    arguments = parser.parse_args()
    job = WarmStartJob.from_json(json.loads(arguments.job.read_text(encoding="utf-8")))
    result = warm_start(
        arguments.out_dir,
        arguments.cache_dir,
        demonstrations=job.stages,
        config=job.config,
        model=job.model,
        tokenizer=job.tokenizer,
        tokenizer_texts=job.tokenizer_texts,
        progress=lambda line: print(json.dumps(line), flush=True),
    )
    print(
        json.dumps({"directory": str(result.directory), "cached": result.cached, "seconds": round(result.seconds, 1)})
    )


if __name__ == "__main__":
    main()
