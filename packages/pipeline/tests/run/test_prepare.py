"""What an earlier driver of a run prepared is found again, with the verifier that the configuration names now."""

import errno
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.config.task import TaskConfig
from tailrace.pipeline.errors import ConfigError, RunDirectoryError, RunWriteError
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory, read_json, write_json
from tailrace.pipeline.run.prepare import FORCED, check, prepare
from tailrace.reward.tasks import get_task
from tailrace.trainer.warmstart import WarmStartResult


@pytest.fixture
def configured(tmp_path):
    """A configuration of prompts of one's own, and a directory in which its run was prepared."""
    (tmp_path / "train.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}\n')
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    layers = [
        (
            "mine",
            {
                "app": "laminar",
                "task": {"train": str(tmp_path / "train.jsonl"), "verifier": "exact"},
                "model": {"path": str(model)},
            },
        )
    ]
    config = validate(layers)
    directory = RunDirectory.create(tmp_path / "run", config.model_dump(mode="json"))
    note = {
        "model": str(model),
        "train": [str(tmp_path / "train.jsonl")],
        "shares": [1.0],
        "held_out": None,
        "verifier": "exact",
        "verifiers": ["exact"],
        "forced_prefix": "",
        "demonstrations": None,
        "warm_start_s": 0.0,
        "warm_start_cached": False,
    }
    write_json(directory.prepared, note)
    yield layers, directory
    directory.unlock()


def test_the_verifier_may_change(configured):
    layers, directory = configured
    assert prepare(validate(layers), directory, print).verifier == "exact"
    changed = validate([*layers, ("--set", {"task": {"verifier": "numeric"}})])
    assert prepare(changed, directory, print).verifier == "numeric"


def test_what_another_version_prepared_is_refused_in_a_line(configured):
    layers, directory = configured
    found = read_json(directory.prepared)
    del found["train"]
    write_json(directory.prepared, found)
    with pytest.raises(RunDirectoryError, match="found something else than this version writes"):
        prepare(validate(layers), directory, print)


def test_a_mix_of_generated_tasks(tmp_path, monkeypatch):
    """Each task has its share of the prompts, and held-out problems stand in the order that the evaluation plan says."""
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    task = {"mix": {"short-chain-sum": 2, "programs": 1}, "train_size": 100, "held_out_size": 10}
    config = validate([("mine", {"app": "laminar", "task": task, "model": {"path": str(model)}})])
    directory = RunDirectory.create(tmp_path / "run", config.model_dump(mode="json"))
    synced, fsync = [], os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda file: (synced.append(str(Path(f"/proc/self/fd/{file}").readlink())), fsync(file))[1]
    )
    try:
        prepared = prepare(config, directory, print)
        assert prepare(config, directory, print) == prepared
    finally:
        directory.unlock()
    # a note that outlives a crash of the machine names prompts that do
    assert {*map(str, (*prepared.train, prepared.held_out))} < {*synced[:-2]}
    assert synced[-2].startswith(f"{directory.prepared}.")
    assert config.task.parts(100) == {"short-chain-sum": 67, "programs": 33}
    assert [len(path.read_text().splitlines()) for path in prepared.train] == [67, 33]
    assert (prepared.shares, prepared.verifiers) == ((2.0, 1.0), ("reasoning-gym", "code"))
    assert FORCED not in prepared.modes()
    plan = build_spec(config).evaluation
    kinds = {"short-chain-sum": "reasoning-gym", "programs": "code"}
    rows = [json.loads(line)["verifier"] for line in prepared.held_out.read_text().splitlines()]
    assert rows == [kinds[plan.source(problem)] for problem in range(plan.size)]
    assert sorted(Counter(rows).values()) == [3, 7]


def test_a_disk_that_is_full_is_told_with_the_folder_that_was_written(tmp_path, monkeypatch):
    config = validate([("mine", {"app": "laminar", "task": {"name": "short-chain-sum"}, "model": {"path": "there"}})])
    directory = RunDirectory.create(tmp_path / "run", {})
    directory.unlock()
    full = OSError(errno.ENOSPC, "No space left on device")  # of a write, which says no file
    monkeypatch.setattr("tailrace.reward.tasks.write_jsonl", Mock(side_effect=full))
    with pytest.raises(RunWriteError, match=rf"^{directory.task}: could not be written: No space left on device$"):
        prepare(config, directory, print)


@pytest.mark.parametrize("flawless", [0, 3])
def test_a_warm_start_may_begin_with_demonstrations_without_mistakes(tmp_path, monkeypatch, flawless):
    made = []

    def build(directory, cache, *, demonstrations, **_):
        made.extend(demonstrations)
        return WarmStartResult(directory, False, 0.0)

    monkeypatch.setattr("tailrace.trainer.warmstart.warm_start", build)
    warm = {"steps": 5, "demonstrations": 300, "flawless_steps": flawless}
    task = {"name": "tool-sums", "train_size": 10, "held_out_size": 10}
    config = validate([("mine", {"app": "laminar", "task": task, "warm_start": warm})])
    directory = RunDirectory.create(tmp_path / "run", config.model_dump(mode="json"))
    try:
        prepared = prepare(config, directory, print)
    finally:
        directory.unlock()
    task, seed = get_task("tool-sums"), config.seed + 1
    expected = [(3, task.warm_start(300, seed, 0.0))] if flawless else []
    expected.append((5, task.warm_start(300, seed)))
    assert [(stage.until_step, stage.examples) for stage in made] == expected
    assert len(json.loads(prepared.demonstrations.read_text())) == 300


def test_flawless_steps_leave_some_for_the_others():
    config = validate(
        [("mine", {"app": "laminar", "task": {"name": "tool-sums"}, "warm_start": {"flawless_steps": 600}})]
    )
    with pytest.raises(ConfigError, match=r"'warm_start.steps': found 600 and 600, expected fewer of the first"):
        check(config)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=5), st.integers(0, 1000))
def test_parts_add_up_and_are_within_one_of_their_share(shares, count):
    task = TaskConfig(mix={f"t{place}": share for place, share in enumerate(shares)})
    parts = task.parts(count)
    assert sum(parts.values()) == count
    assert all(abs(parts[f"t{p}"] - count * share / sum(shares)) < 1 for p, share in enumerate(shares))


def test_a_run_below_the_working_directory_is_found_from_there_and_from_elsewhere(tmp_path, monkeypatch):
    """Its directory is a relative path, as `tailrace run` makes one; a note of such paths is of an earlier version."""
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    task = {"mix": {"short-chain-sum": 1}, "train_size": 10, "held_out_size": 2}
    config = validate([("mine", {"app": "laminar", "task": task, "model": {"path": str(model)}})])
    monkeypatch.chdir(tmp_path)
    directory = RunDirectory(Path("runs/mine"))
    directory.task.mkdir(parents=True)
    prepare(config, directory, lambda told: None)
    note = read_json(directory.prepared)
    for noted in (note, note | {"train": ["runs/mine/task/" + Path(note["train"][0]).name]}):
        write_json(directory.prepared, noted)
        for where in (tmp_path, tmp_path / "model"):
            monkeypatch.chdir(where)
            found = prepare(config, RunDirectory(tmp_path / "runs/mine"), lambda told: None)
            assert all(path.is_file() for path in (*found.train, found.held_out)), noted
        monkeypatch.chdir(tmp_path)
        assert prepare(config, directory, lambda told: None).train[0].is_file()


def test_a_run_that_was_moved_has_what_is_in_its_directory(tmp_path):
    """Its own files are where it is now, also while the old ones exist; the model stays where the configuration says."""
    (tmp_path / "train.jsonl").write_text('{"prompt": "1 + 1 =", "answer": "2"}\n')
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (model / name).write_text("{}")
    table = {"train": str(tmp_path / "train.jsonl"), "held_out": None, "verifier": "exact"}
    config = validate([("mine", {"app": "laminar", "task": table, "model": {"path": str(model)}})])
    directory = RunDirectory(tmp_path / "run")
    directory.task.mkdir(parents=True)
    first = prepare(config, directory, lambda told: None)
    assert str(tmp_path / "run") not in directory.prepared.read_text()
    shutil.copytree(directory.root, tmp_path / "copy")
    (tmp_path / "train.jsonl").unlink()
    for root in ("copy", "run"):
        found = prepare(config, RunDirectory(tmp_path / root), lambda told: None)
        assert (found.train, found.model) == ((tmp_path / root / "task" / "train.jsonl",), model)
        assert found.train[0].is_file()
    assert first == found

    note = read_json(directory.prepared)
    write_json(
        tmp_path / "copy/task/prepared.json",
        note | {"train": ["/gone/run/task/train.jsonl"], "model": "/gone/run/model"},
    )
    (tmp_path / "copy/model").mkdir()
    found = prepare(config, RunDirectory(tmp_path / "copy"), lambda told: None)  # as it was noted once
    assert (found.train, found.model) == ((tmp_path / "copy/task/train.jsonl",), tmp_path / "copy/model")
