"""Prompts as people have them, from the command line: files of several kinds, datasets, columns of other names."""

import json
import tomllib

import pytest

from tailrace.cli.main import main

pytestmark = pytest.mark.usefixtures("one_verifier_process", "one_probe_of_each_sandbox")
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
    (tmp_path / "mine" / "a.txt").write_text(json.dumps(ROWS))
    status, _, err = dry('train = "a.txt"')
    assert status == 2
    assert err[0].endswith(
        "found the ending '.txt', expected one of .jsonl, .ndjson, .json, .csv, .tsv, .parquet, .arrow, text also with .gz, "
        ".bz2, .xz behind it, or a dataset as hf:NAME:SPLIT"
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


SOURCES = """
[[task.sources]]
path = "a.jsonl"
share = 3
verifier = "mine.py:verify"
[[task.sources]]
path = "b.csv"
prompt_column = "question"
"""


@pytest.fixture
def two(tmp_path, dry):
    (tmp_path / "mine" / "a.jsonl").write_text('{"prompt": "1 + 1?", "answer": 2}\n')
    (tmp_path / "mine" / "b.csv").write_text("question,answer\n1 + 2?,3\n1 + 3?,4\n")
    verifier = "def verify(response, answer, metadata):\n    return float(answer in response)\n"
    (tmp_path / "mine" / "mine.py").write_text(verifier)
    return dry


def test_several_sources(two):
    status, out, err = two(SOURCES)
    assert (status, err) == (0, [])
    assert "75 % from 1 of" in out
    assert "25 % from 2 of" in out
    for words in ("verifier math", "rows of sources.0 1;", "rows of sources.1 2;"):
        assert words in out


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (f'train = "a.jsonl"\n{SOURCES}', "key 'task': found 'train' and 'sources', expected one"),
        (SOURCES.replace("share = 3", "share = 0"), "key 'task.sources.0.share': found 0, expected: greater than 0"),
        (SOURCES.replace("share = 3", "shares = 3"), "'task.sources.0.shares', expected one of answer_column, path, "),
        (SOURCES.replace("mine.py:verify", "mth"), "key 'task.sources.0.verifier': found 'mth', expected one of"),
        (SOURCES.replace("mine.py:verify", "mine.py:check"), "tried on the first row of mine/a.jsonl"),
        (SOURCES.replace("b.csv", "c.csv"), "mine/c.csv: found no such file"),
        (SOURCES.replace('prompt_column = "question"', ""), "mine/b.csv, line 2: found the columns answer, question"),
        ('sources = "a.jsonl"', "key 'task.sources': found 'a.jsonl', expected"),
        (f'held_out = "a.jsonl"\n{SOURCES}', "this held-out prompt is in mine/a.jsonl too"),
        ("[task.mix]\nprograms = 0", "key 'task.mix.programs': found 0, expected: greater than 0"),
        ("[task.mix]\nprogramms = 1", "key 'task.mix.programms': found the task 'programms', expected one of"),
        (f"mix = {{ programs = 1 }}\n{SOURCES}", "key 'task': found 'mix' and 'sources', expected one"),
        (
            "mix = { programs = 1, short-chain-sum = 1000 }",
            "key 'task.held_out_size': found 256, of which none would be of 'programs' by its share, expected more",
        ),
    ],
)
def test_sources_that_are_wrong(two, lines, words):
    status, out, err = two(lines)
    assert (status, out) == (2, "")
    assert any(words in line for line in err), err
    assert all(line.startswith("tailrace: ") and "mine/run.toml" in line for line in err), err


def test_sources_in_the_reference_of_keys(two, capsys, tmp_path):
    two(SOURCES)
    assert main(["config", "mine/run.toml"]) == 0
    table = tomllib.loads(capsys.readouterr().out)["task"]
    first = {
        "path": str(tmp_path / "mine" / "a.jsonl"),
        "share": 3.0,
        "verifier": f"{tmp_path / 'mine' / 'mine.py'}:verify",
    }
    assert table["sources"][0] == first
    assert table["sources"][1]["prompt_column"] == "question"
    assert main(["config", "--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    assert set(schema["$defs"]["SourceConfig"]["properties"]) == {
        "path",
        "share",
        "verifier",
        "prompt_column",
        "answer_column",
    }


def test_as_many_held_out_problems_as_there_are(dry, tmp_path):
    for name, first in (("a", 0), ("h", 50)):
        rows = [{"prompt": f"{number} + 1?", "answer": number + 1} for number in range(first, first + 9)]
        (tmp_path / "mine" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for asked, found in ((5, 5), (9, 9), (100, 9)):
        status, out, _ = dry(f'train = "a.jsonl"\nheld_out = "h.jsonl"\nheld_out_size = {asked}')
        assert status == 0
        assert f"held out {found} rows" in out


def test_rows_of_an_environment_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "riddles.py").write_text(
        "class Riddles:\n"
        "    def rows(self, start, stop): return [{} for _ in range(start, stop)]\n"
        "    def reset(self, row): return str(row['seed'])\n"
        "    def step(self, action): return {'observation': '', 'done': True}\n"
        "    def close(self): pass\n"
    )
    (tmp_path / "run.toml").write_text(
        'app = "laminar"\n[task]\nheld_out_size = 5\n[environment]\nname = "riddles.py:Riddles"\n'
        '[model]\nsmall = {}\n[warm_start]\ntask = "long-chain-sum"\n'
    )
    assert main(["run", "run.toml", "--dry-run"]) == 0, capsys.readouterr().err
    said = " ".join(capsys.readouterr().out.split())
    assert "prompts rows of the environment" in said
    assert "held out 5" in said
