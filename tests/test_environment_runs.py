"""Runs as docs/environments.md shows them: your own environment, and ten steps on the released packages' own examples."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.prepare import prepare
from tailrace.trajstore import PromptPool, read_trained

PAGE = (Path(__file__).parents[1] / "docs" / "environments.md").read_text(encoding="utf-8")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TAGS = (
    "<think>", "</think>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
)  # fmt: skip
WORDS = ("arm", "bell", "bone", "cake", "comb", "door", "flag", "frame", "garden", "hammer", "house", "island")
SMALL = {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp": 32}


def shown(name):
    """A configuration of the page, by the name in its first line."""
    (text,) = [each for each in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if each.startswith(f"# {name}")]
    assert len(text.splitlines()) < 40
    return text


def run(folder, name, *settings, **variables):
    """Run a configuration of the page; returns the content of its summary and what was trained on."""
    (folder / name).write_text(shown(name))
    given = [word for pair in settings for word in ("--set", pair)]
    command = [sys.executable, "-m", "tailrace.cli.main", "run", name, "--run-dir", "run", "--plain", *given]
    environment = {**os.environ, "TAILRACE_CACHE": str(folder / "cache"), **variables}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=3000)
    assert done.returncode == 0, done.stdout + done.stderr
    trained = list(read_trained(RunDirectory(folder / "run").trained))
    return json.loads((folder / "run" / "summary.json").read_text()), trained


def test_your_own_environment_says_the_first_word(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="a model is written")
    from tailrace.trainer.small_model import build_model
    from tailrace.trainer.tokenizer import train_tokenizer

    words, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    config = shown("words.toml")
    (tmp_path / "words.py").write_text(words)
    row = re.search(r"# (\{.*\})", config)[1]
    (tmp_path / "words.jsonl").write_text(f"{row}\n{row}\n")
    size = train_tokenizer([config], tmp_path / "my-model", vocab_size=300)
    build_model(tmp_path / "my-model", vocab_size=size, **SMALL)
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory(tmp_path / "run")
    directory.task.mkdir(parents=True)
    found = prepare(validate([("words.toml", tomllib.loads(config))]), directory, lambda _: None)
    pool = PromptPool.from_file(found.train[0])
    assert [pool[0].prompt, pool[1].prompt] == ["Name the word, letter by letter.\nThe word has the letters ...."] * 2


@pytest.fixture
def theirs(tmp_path):
    if shutil.which("uv") is None:
        pytest.skip("it needs uv, to install the released package")
    pytest.importorskip("torch", reason="a model is trained")

    def install(*commands):
        for command in commands:
            subprocess.run(command, shell=True, cwd=tmp_path, check=True, capture_output=True, timeout=400)
        return tmp_path

    return install


@pytest.mark.deep
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("host", ["local", "ray"])
def test_ten_steps_on_openenvs_own_example(theirs, host):
    (commands,) = re.findall(r"```console\n(\$ uv venv theirs[^`]*openenv init[^`]*)```", PAGE)
    folder = theirs(*commands.replace("$ ", "").splitlines())
    faster = (
        "warm_start.steps=40",
        "evaluation.controls=false",
        "rollout.max_tokens=60",
        "rollout.engine=transformers",
    )
    summary, trained = run(folder, "echo.toml", *faster, f"executor.name={host}")
    assert (summary["steps"], len(trained)) == (10, 320)
    assert (summary["turns_lost"], summary["sessions_lost"]) == (0, 0)
    assert all(each["reward"] <= 3.0 for each in trained)  # a turn earns at most 1
    rows = [json.loads(line) for line in (folder / "run" / "task" / "train.jsonl").read_text().splitlines()]
    assert {row["prompt"] for row in rows} == {"Echo Env environment ready!"}
    assert [row["metadata"]["reset"]["seed"] for row in rows] == list(range(8, 88))  # the first eight are held out


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_ten_steps_on_a_taskset_that_verifiers_brings_with_it(theirs):
    """Its words are a download of the game's library, nltk, so that a few common ones are given instead."""
    from tailrace.trainer.small_model import build_model
    from tailrace.trainer.tokenizer import train_tokenizer

    folder = theirs("uv venv theirs", "uv pip install --python theirs/bin/python 'verifiers[ta]==0.4.0'")
    corpus = folder / "nltk_data" / "corpora" / "words"
    corpus.mkdir(parents=True)
    for name in ("en", "en-basic"):
        (corpus / name).write_text("\n".join(WORDS) + "\n")
    texts = ["".join(map(chr, range(32, 127))) + "\n", PAGE]
    size = train_tokenizer(texts, folder / "model", vocab_size=500, tags=TAGS)
    build_model(folder / "model", vocab_size=size, **SMALL)
    about = folder / "model" / "tokenizer_config.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "chat_template": CHATML}))
    short = ("rollout.max_tokens=120", "rollout.engine=transformers", "executor.name=local", "environment.sessions=4")
    # verifiers starts a program for each rollout
    few = ("pipeline.prompts_per_step=2", "evaluation.controls=false")
    summary, trained = run(folder, "hangman.toml", *short, *few, NLTK_DATA=str(folder / "nltk_data"))
    assert (summary["steps"], len(trained)) == (10, 80)
    assert (summary["turns_lost"], summary["sessions_lost"]) == (0, 0)
    rows = [json.loads(line) for line in (folder / "run" / "task" / "train.jsonl").read_text().splitlines()]
    assert all(row["prompt"].startswith("<|im_start|>system\nYou are a competitive game player.") for row in rows)
    assert all(row["prompt"].endswith("<|im_end|>\n<|im_start|>assistant\n") for row in rows)
