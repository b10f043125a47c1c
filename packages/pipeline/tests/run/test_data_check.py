"""Everything that is wrong with prompt files is told before anything starts, row by row."""

import json

import pytest

from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.data_check import check_data


def faults(tmp_path, train, held_out=None, **tables):
    files = {"train": tmp_path / "train.jsonl"}
    files["train"].write_bytes(b"\n".join(train) + b"\n")
    if held_out is not None:
        files["held_out"] = tmp_path / "held_out.jsonl"
        files["held_out"].write_bytes(b"\n".join(held_out) + b"\n")
    task = {name: str(path) for name, path in files.items()} | {"verifier": "numeric"} | tables.pop("task", {})
    try:
        check_data(validate([("mine", {"task": task, **tables})]))
    except ConfigError as error:
        return str(error).replace(f"{tmp_path}/", "").splitlines()
    return []


def row(**columns):
    return json.dumps({"prompt": "1 + 1 =", "answer": "2"} | columns).encode()


def test_rows_that_are_right(tmp_path):
    assert faults(tmp_path, [row(), b"", row(prompt="2 + 2 =", answer=4)], [row(prompt="3 + 3 =", answer="6")]) == []


def test_every_wrong_row_is_told_with_its_line(tmp_path):
    found = faults(
        tmp_path,
        [row(), b"x", b"[]", row(answer=None), b'{"answer": "2"}', row(prompt=" "), row(verifier="mth"), b"\xff"],
    )
    assert found == [
        "train.jsonl, line 2: found no JSON (Expecting value, column 1), expected an object on each line",
        "train.jsonl, line 3: found list, expected an object on each line",
        "train.jsonl, line 4: found NoneType in column 'answer', expected text or a number",
        "train.jsonl, line 5: found the columns answer, expected 'prompt' among them",
        "train.jsonl, line 6: found an empty prompt, expected text",
        "train.jsonl: 2 more rows are wrong",
    ]


def test_a_verifier_that_is_not_there_or_cannot_judge(tmp_path):
    (unknown,) = faults(tmp_path, [row(), row(prompt="x", verifier="mth")])
    assert unknown.startswith(
        "train.jsonl, line 2: found the verifier 'mth', expected one of code, environment, exact, "
    )
    (cannot,) = faults(tmp_path, [row(answer="twelve")])
    assert cannot.startswith("key 'task.verifier': tried on the first row of train.jsonl: ")
    assert "'twelve'" in cannot


def test_prompts_that_are_held_out_and_trained_on(tmp_path):
    (line,) = faults(tmp_path, [row(), row(prompt="a")], [row(prompt="b"), row(), row(prompt="a")])
    assert line == (
        "held_out.jsonl, line 2: this held-out prompt is in train.jsonl too, and so do 1 more; expected prompts not "
        "trained on"
    )


@pytest.fixture
def model(tmp_path):
    """A tokenizer of words, and a context of 40 tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 40}')
    return tmp_path


def test_prompts_that_do_not_fit_the_context(tmp_path, model):
    rows = [row(prompt="a " * 30), row(prompt="a " * 31)]
    (line,) = faults(tmp_path, rows, model={"path": str(tmp_path)}, rollout={"max_tokens": 10})
    assert line == (
        "train.jsonl, line 2: found a prompt of 31 tokens, expected at most 30: the context less rollout.max_tokens = 10"
    )


@pytest.mark.parametrize("name", ["train.txt", "missing.csv", "hf:nobody"])
def test_a_file_that_is_none(tmp_path, name):
    (line,) = faults(tmp_path, [row()], task={"train": name if ":" in name else str(tmp_path / name)})
    assert name in line


def test_a_generated_task_has_no_files():
    check_data(validate([("mine", {"task": {"name": "long-chain-sum"}})]))


def test_a_verifier_of_ones_own_is_tried_once(tmp_path):
    (tmp_path / "mine.py").write_text("def verify(response, answer, metadata):\n    return float(answer in response)\n")
    mine = {"verifier": f"{tmp_path / 'mine.py'}:verify"}
    assert faults(tmp_path, [row()], task=mine) == []
    (tmp_path / "mine.py").write_text("def verify(response, answer):\n    return 1.0\n")
    (line,) = faults(tmp_path, [row()], task=mine)
    assert "tried on the first row of train.jsonl" in line
    assert "TypeError" in line
