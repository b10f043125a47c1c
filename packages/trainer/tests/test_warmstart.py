import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from subprocess import PIPE
from typing import Any

import pytest

from tailrace.processes import Child
from tailrace.trainer import TrainerConfigError, WarmStartCancelledError, WarmStartError, WarmStartTimeoutError
from tailrace.trainer.small_model import SmallModel
from tailrace.trainer.warmstart import (
    DemonstrationStage,
    TokenizerShape,
    WarmStartConfig,
    WarmStartJob,
    _report,
    continue_sft,
    run_ranks,
    warm_start,
)

pytestmark = pytest.mark.long
EXAMPLES = [(f"{a} + {b} = ", f"<answer>{a + b}</answer>") for a in range(10) for b in range(10)]
CONFIG = WarmStartConfig(steps=6, batch=8, lr=0.01, warmup_steps=2, processes=2, device="cpu")
TINY: dict[str, Any] = {
    "demonstrations": [DemonstrationStage(4, EXAMPLES[:50]), DemonstrationStage(6, EXAMPLES[50:])],
    "config": CONFIG,
    "model": SmallModel(hidden=16, layers=1, head_dim=8, mlp=32),
    "tokenizer": TokenizerShape(vocab_size=40),
}


@pytest.mark.deep
def test_built_once_cached_rebuilt_when_damaged_and_continued(tmp_path, caplog):
    lines = []
    cache, out = tmp_path / "cache", tmp_path / "out"
    first = warm_start(out, cache, **TINY, progress=lines.append, timeout_s=240)
    assert not first.cached
    assert (lines[-1]["step"], lines[-1]["steps"], lines[-1]["seconds_left"]) == (6, 6, 0)
    assert lines[-1]["loss"] > 0
    assert lines[-1]["tokens_per_s"] > 0

    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, lm = AutoTokenizer.from_pretrained(out), AutoModelForCausalLM.from_pretrained(out)
    assert lm.config.vocab_size == len(tokenizer)
    assert lm.config.eos_token_id == tokenizer.eos_token_id
    weights = (out / "model.safetensors").read_bytes()

    again = warm_start(tmp_path / "copy", cache, **TINY)
    assert again.cached
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == weights

    (entry,) = [path for path in cache.iterdir() if not path.name.startswith(".")]
    (entry / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    rebuilt = warm_start(out, cache, **TINY, timeout_s=240)
    assert not rebuilt.cached
    assert "damaged and is built again" in caplog.text
    # The seed decides: the same bits once more, two processes or not.
    assert (out / "model.safetensors").read_bytes() == weights
    assert [path.name for path in cache.iterdir()] == [entry.name]

    lines.clear()
    tuned = continue_sft(
        out, tmp_path / "tuned", examples=EXAMPLES, seconds=1.0, lr=0.01,
        config=dataclasses.replace(CONFIG, processes=1), progress=lines.append, timeout_s=240,
    )  # fmt: skip
    assert (tuned.directory / "tokenizer.json").is_file()
    assert (tuned.directory / "model.safetensors").read_bytes() != weights
    assert lines[-1]["loss"] < 3.0


def test_everything_that_matters_is_in_the_key():
    base = WarmStartJob(TINY["demonstrations"], CONFIG, TINY["model"], TINY["tokenizer"])
    others = [
        dataclasses.replace(base, stages=[DemonstrationStage(5, EXAMPLES[:50]), DemonstrationStage(6, EXAMPLES[50:])]),
        dataclasses.replace(base, stages=[DemonstrationStage(4, EXAMPLES[1:50]), DemonstrationStage(6, EXAMPLES[50:])]),
        dataclasses.replace(base, config=dataclasses.replace(CONFIG, seed=1)),
        dataclasses.replace(base, config=dataclasses.replace(CONFIG, lr=0.02)),
        dataclasses.replace(base, model=SmallModel(hidden=32)),
        dataclasses.replace(base, model=SmallModel(embedding_std=0.2)),
        dataclasses.replace(base, tokenizer=TokenizerShape(vocab_size=41)),
        dataclasses.replace(base, tokenizer_texts=["0123456789"]),
    ]
    assert len({job.key() for job in (base, *others)}) == len(others) + 1
    assert WarmStartJob.from_json(json.loads(json.dumps(base.to_json()))).key() == base.key()


def test_the_rate_rises_and_falls_linearly():
    config = WarmStartConfig(steps=12, lr=1.0, warmup_steps=2)
    assert [config.lr_at(step) for step in range(12)] == pytest.approx(
        [0.5, 1.0, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    )


def test_a_failing_rank_is_reported_with_what_it_said(tmp_path):
    with pytest.raises(WarmStartError, match=r"^rank \d of the warm start ended with code 1: KeyError: .*"):
        run_ranks(tmp_path, {"kind": "warm_start", "config": {"threads": 1}}, 2, None, None, 120)


def test_cancelled_and_late_ones_leave_no_process_and_no_file(tmp_path):
    with pytest.raises(WarmStartCancelledError):
        warm_start(tmp_path / "out", tmp_path / "cache", **TINY, cancel=lambda: True)
    with pytest.raises(WarmStartTimeoutError, match=r"waited 0\.3 s"):
        warm_start(tmp_path / "out", tmp_path / "cache", **TINY, timeout_s=0.3)
    assert not list((tmp_path / "cache").iterdir())
    assert not (tmp_path / "out").exists()
    assert not children(str(tmp_path))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ranks_end_with_their_caller(tmp_path, how):
    job = WarmStartJob(**{"stages": TINY["demonstrations"], **{k: v for k, v in TINY.items() if k != "demonstrations"}})
    (tmp_path / "job.json").write_text(json.dumps(job.to_json()))
    command = [sys.executable, "-m", "tailrace.trainer.warmstart", "job.json", tmp_path / "out", tmp_path / "cache"]
    caller = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(children(str(tmp_path / "cache"))) == 2)
    finally:
        caller.send_signal(how)
        caller.wait(60)
    wait_for(lambda: not children(str(tmp_path / "cache")))


def test_bad_jobs_are_refused_at_once():
    with pytest.raises(TrainerConfigError, match="last stage to end at step 4"):
        WarmStartJob([DemonstrationStage(4, EXAMPLES)], CONFIG)
    with pytest.raises(TrainerConfigError, match="without examples"):
        WarmStartJob([DemonstrationStage(6, [])], CONFIG)
    with pytest.raises(TrainerConfigError, match="rise from 1"):
        WarmStartJob([DemonstrationStage(6, EXAMPLES), DemonstrationStage(6, EXAMPLES)], CONFIG)
    with pytest.raises(TrainerConfigError, match="processes = 0"):
        WarmStartConfig(processes=0)


def children(path):
    """Warm-start ranks whose working directory lies below `path`."""
    found = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [
        line for line in found if "warmstart_rank" in line and path in line and str(os.getpid()) not in line.split()[:1]
    ]


def wait_for(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def test_what_libraries_print_between_is_no_progress():
    told = []
    rank = Child(
        [sys.executable, "-c", "print('{not json'); print('[1]'); print('hello'); print('{\"step\": 1}')"], stdout=PIPE
    )
    try:
        assert rank.wait(60.0) == 0
        _report(rank, told.append)
    finally:
        rank.kill()
    assert told == [{"step": 1}]
