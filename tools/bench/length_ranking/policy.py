"""The policy whose responses are measured: a small Qwen3, warm-started on worked solutions of the mix, and its RL run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from length_ranking import mix
from length_ranking.stages import Clock

MAX_TOKENS = 192
MAX_MODEL_LEN = 512
STEPS, BATCH, DEMONSTRATIONS = 1200, 24, 12_000
RL_STEPS, RL_EVERY = 50, 10
"""Versions of the RL run, and every which one is measured."""


def warm_started(directory: Path, seed: int, clock: Clock) -> Path:
    """The model directory; taken from the cache of warm starts where it is there."""
    from tailrace.pipeline.run.prepare import cache_directory
    from tailrace.trainer.errors import WarmStartCancelledError
    from tailrace.trainer.small_model import SmallModel
    from tailrace.trainer.warmstart import DemonstrationStage, TokenizerShape, WarmStartConfig, warm_start

    model = directory / "policy"
    if (model / "config.json").is_file():
        return model
    try:
        found = warm_start(
            model,
            cache_directory() / "warmstart",
            demonstrations=[DemonstrationStage(STEPS, mix.demonstrations(DEMONSTRATIONS, seed))],
            config=WarmStartConfig(
                steps=STEPS,
                batch=BATCH,
                optimizer="muon",
                lr=4e-3,
                hold=0.4,
                lr_end=1.2e-4,
                bucket=8,
                threads=1,
                seed=seed,
            ),
            model=SmallModel(max_positions=MAX_MODEL_LEN),
            tokenizer=TokenizerShape(vocab_size=700, attach_space=True),
            progress=lambda row: clock.say("policy", f"step {row['step']} of {row['steps']}, loss {row['loss']:.3f}"),
            cancel=lambda: clock.over,
        )
    except WarmStartCancelledError:
        clock.check()
        raise
    clock.say("policy", f"{'from the cache' if found.cached else f'{found.seconds:.0f} s'}", last=True)
    return model


def trained_by_rl(directory: Path, model: Path, problems: Sequence[mix.Problem], seed: int, clock: Clock) -> Path:
    """The directory of an RL run of `RL_STEPS` versions on these problems, whose checkpoints are every `RL_EVERY`th version.

    The run is laminar's quick start with another model and other prompts, one replica and no evaluation. One that was cut off
    goes on.

    Raises:
        RuntimeError: the run failed; its output is in ``rl.log``.
    """
    run, rows, config = directory / "rl", directory / "rl.jsonl", directory / "rl.toml"
    if (run / "checkpoints" / str(RL_STEPS)).is_dir():
        return run
    rows.write_text("".join(json.dumps(problem.row()) + "\n" for problem in problems))
    config.write_text(_CONFIG.format(model=json.dumps(str(model.absolute())), rows=json.dumps(str(rows.absolute()))))
    given = ["--resume", str(run)] if run.exists() else [str(config), "--run-dir", str(run), "--seed", str(seed)]
    clock.say("rl", f"{RL_STEPS} versions, output in {directory / 'rl.log'}", last=True)
    with (directory / "rl.log").open("a") as log:
        command = [sys.executable, "-m", "tailrace.cli.main", "run", "--plain", *given]
        try:
            done = subprocess.run(command, stdout=log, stderr=log, check=False, timeout=clock.left_s)
        except subprocess.TimeoutExpired:
            clock.check()
            raise
    if done.returncode:
        raise RuntimeError(f"found exit status {done.returncode} of the RL run, expected 0: see {directory / 'rl.log'}")
    return run


_CONFIG = f"""\
# The small run of every quick start, on the mix of tools/bench/ranker.py.
app = "laminar"

[task]
train = {{rows}}
verifier = "reasoning-gym"

[model]
path = {{model}}

[pipeline]
steps = {RL_STEPS}
prompts_per_step = 32
samples_per_prompt = 8
prompts_per_replica = 24
buffer_prompts = 64

[rollout]
replicas = 1
max_tokens = {MAX_TOKENS}

[rollout.options]
threads = 1
max_model_len = {MAX_MODEL_LEN}

[trainer.options]
lr = 7e-4
warmup_steps = 3
threads = 1

[evaluation]
controls = false

[checkpoint]
every = {RL_EVERY}
keep = {RL_STEPS // RL_EVERY + 1}
"""
