"""Prompts as people have them, from the command line: files of several kinds, datasets, columns of other names."""

import json

import pytest

from tailrace.cli.main import main

ROWS = [{"question": f"{number} + 1?", "solution": number + 1} for number in range(3)]
COLUMNS = 'prompt_column = "question"\nanswer_column = "solution"\n'


@pytest.fixture
def dry(tmp_path, monkeypatch, capsys):
    """Does a dry run with these lines in the table `task`; returns the exit status, and words of stdout and lines of stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()

    def run(task, *arguments, model=""):
        lines = f'app = "laminar"\nbase = "quickstart"\n[task]\n{task}\n'
        (tmp_path / "mine" / "run.toml").write_text(lines + (model or '[warm_start]\ntask = "long-chain-sum"\n'))
        status = main(["run", "mine/run.toml", "--dry-run", *arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return status, " ".join(out.split()), err.replace(f"{tmp_path}/", "").splitlines()

    return run


def test_a_csv_file_with_columns_of_other_names(dry, tmp_path):
    (tmp_path / "mine" / "a.csv").write_text("question,solution\n1 + 1?,2\n2 + 1?,3\n")
    status, out, err = dry(f'train = "a.csv"\n{COLUMNS}')
    assert (status, err) == (0, [])
    assert "prompts 2 of" in out
    status, _, err = dry('train = "a.csv"')
    assert status == 2
    assert err[0].endswith("mine/a.csv, line 2: found the columns question, solution, expected 'prompt' among them")


def test_a_dataset_beside_the_configuration(dry, tmp_path, capsys):
    datasets = pytest.importorskip("datasets")
    saved = datasets.DatasetDict(
        {"train": datasets.Dataset.from_list(ROWS), "test": datasets.Dataset.from_list(ROWS[:1])}
    )
    saved.save_to_disk(str(tmp_path / "mine" / "sums"))
    capsys.readouterr()  # bars of the saving
    status, out, err = dry(f'train = "hf:./sums:train"\n{COLUMNS}')
    assert (status, err) == (0, [])
    assert "prompts 3 of" in out
    status, _, err = dry(f'train = "hf:./sums:train"\nheld_out = "hf:./sums:test"\n{COLUMNS}')
    assert status == 2
    assert err[0].startswith(
        "tailrace: mine/run.toml: hf:mine/sums:test, row 1: this held-out prompt is in hf:mine/sums:train"
    )
    assert len(err) == 1
    status, _, err = dry(f'train = "hf:./sums:dev"\nheld_out = "hf:./nowhere:test"\n{COLUMNS}')
    assert status == 2
    assert [line.partition("found")[2] for line in err] == [
        " the splits test, train, expected 'dev' among them",
        " no folder 'mine/nowhere', expected one that holds a dataset",
    ]


def test_a_file_of_another_kind(dry, tmp_path):
    (tmp_path / "mine" / "a.json").write_text(json.dumps(ROWS))
    status, _, err = dry('train = "a.json"')
    assert status == 2
    assert err[0].endswith(
        "found the ending '.json', expected one of .jsonl, .ndjson, .csv, .parquet, or a dataset as hf:NAME:SPLIT"
    )


def test_chat_messages_need_a_model_with_a_template(dry, tmp_path):
    rows = [{"prompt": [{"role": role, "content": "1 + 1?"}], "answer": 2} for role in ("user", "usr")]
    (tmp_path / "mine" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, _, err = dry('train = "a.jsonl"')
    assert status == 2
    assert err == [
        ("tailrace: mine/run.toml: key 'model.path': found none, and prompts are chat messages: expected a model whose "
        "tokenizer has a chat template, which the small model's has not")
    ]  # fmt: skip
