"""What an earlier driver of a run prepared is found again, with the verifier that the configuration names now."""

import pytest

from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import RunDirectoryError
from tailrace.pipeline.run.directory import RunDirectory, read_json, write_json
from tailrace.pipeline.run.prepare import prepare


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
