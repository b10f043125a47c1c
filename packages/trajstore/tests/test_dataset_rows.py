"""Hugging Face datasets as sources of prompts, from local folders: nothing here needs a network."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tailrace.trajstore import DatasetsSupportError, PromptFileError, PromptPool

ROWS: dict[str, Any] = {"question": ["2 + 2?", "3 + 3?"], "answer": ["4", "6"], "level": [1, 2]}
COLUMNS = {"prompt_column": "question"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the splits train and test, as `save_to_disk` writes them."""
    datasets = pytest.importorskip("datasets")
    root = tmp_path_factory.mktemp("datasets")
    train = datasets.Dataset.from_dict(ROWS)
    datasets.DatasetDict({"train": train, "test": train.select([1])}).save_to_disk(str(root / "saved"))
    train.save_to_disk(str(root / "alone"))
    train.select([1, 0]).save_to_disk(str(root / "picked"))
    (root / "files").mkdir()
    for split in ("train", "test"):
        train.to_parquet(str(root / "files" / f"{split}.parquet"))
    return root


def prompts(source, **columns):
    pool = PromptPool.from_file(source, **{**COLUMNS, **columns})
    return [(pool[index].prompt, pool[index].answer, pool[index].metadata) for index in range(len(pool))]


def test_a_saved_dataset_with_splits(folder, capfd):
    both = [("2 + 2?", "4", {"level": 1}), ("3 + 3?", "6", {"level": 2})]
    assert prompts(f"hf:{folder}/saved:train") == both
    assert prompts(f"hf:{folder}/saved:test") == both[1:]
    assert prompts(f"hf:{folder}/alone:train") == both
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        ("saved:train[:1]", [0]),
        ("saved:train[-1:]", [1]),
        ("saved:train[50%:]", [1]),
        ("saved:train[:1]+train[1:]+test", [0, 1, 1]),
        ("saved:train[:100]", [0, 1]),
        ("saved:all", [0, 1, 1]),
        ("alone:train[1:2]", [1]),
        ("picked:train[1:]", [0]),  # rows that were chosen, in another order than the files have them
        ("~/saved:test", [1]),
        ("files:train[:1]", [0]),
    ],
)
def test_parts_of_splits(folder, monkeypatch, source, rows):
    monkeypatch.setenv("HOME", str(folder))
    expected = [(ROWS["question"][at], ROWS["answer"][at], {"level": ROWS["level"][at]}) for at in rows]
    assert prompts(f"hf:{source}" if source.startswith("~") else f"hf:{folder}/{source}") == expected


def test_pictures_are_not_decoded(tmp_path):
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("PIL", reason="datasets writes no picture without it")
    features = datasets.Features(
        {"question": datasets.Value("string"), "answer": datasets.Value("string"), "seen": datasets.Image()}
    )
    row = {"question": ["2 + 2?"], "answer": ["4"], "seen": [{"bytes": b"no picture", "path": None}]}
    datasets.Dataset.from_dict(row, features=features).save_to_disk(str(tmp_path / "seen"))
    assert prompts(f"hf:{tmp_path}/seen:train") == [("2 + 2?", "4", {"seen": {"bytes": b"no picture", "path": None}})]
    (file,) = (tmp_path / "seen").glob("*.arrow")
    assert prompts(file) == prompts(f"hf:{tmp_path}/seen:train")


def test_a_folder_without_hf_names_what_to_write(folder):
    with pytest.raises(PromptFileError, match=r"found a folder, expected a file, or hf:.*/saved:SPLIT"):
        PromptPool.from_file(folder / "saved")


@pytest.mark.deep
def test_a_folder_of_files_in_offline_mode(folder, tmp_path):
    """A user runs it in a process of its own: what is in the cache or on the disk needs no network, and no bar is drawn."""
    code = (
        "import sys; from tailrace.trajstore import PromptPool\n"
        "pool = PromptPool.from_file(sys.argv[1], prompt_column='question')\nprint(len(pool), pool[0].prompt)"
    )
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, "hf:./files:train[:1]"],
        cwd=folder, env=offline, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("1 2 + 2?\n", "")
    done = subprocess.run(
        [sys.executable, "-c", code, "hf:nobody/has-this:main:train"],
        cwd=folder, env=offline, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "PromptFileError: hf:nobody/has-this:main:train: found no readable dataset (" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("hf:openai/gsm8k", "found no name with a split, expected hf:NAME:SPLIT, hf:NAME:CONFIGURATION:SPLIT"),
        ("hf:", "found no name with a split"),
        ("hf:a:b:c:d", "found no name with a split"),
        ("hf:./nowhere:train", r"found no folder './nowhere', expected one that holds a dataset"),
        ("hf:FOLDER/saved:dev[:3]", "found the splits test, train, expected 'dev' among them"),
        ("hf:FOLDER/saved:train[x]", r"found no readable dataset \(ValueError: "),
        ("hf:FOLDER/saved:dev", "found the splits test, train, expected 'dev' among them"),
        ("hf:FOLDER/files:dev", r"found no readable dataset \(ValueError: .*dev"),
    ],
)
def test_errors_are_one_line_and_name_the_source(folder, source, words):
    source = source.replace("FOLDER", str(folder))
    with pytest.raises(PromptFileError, match=words) as caught:
        PromptPool.from_file(source)
    assert str(caught.value).startswith(f"{source}: ")
    assert "\n" not in str(caught.value)


def test_rows_are_named(folder):
    with pytest.raises(PromptFileError, match=r"saved:train, row 1: found the columns answer, level, question"):
        PromptPool.from_file(f"hf:{folder}/saved:train")


def test_without_its_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DatasetsSupportError, match=r"tailrace-trajstore\[datasets\]"):
        PromptPool.from_file(f"hf:{folder}/saved:train")


def test_rows_are_what_json_holds(folder):
    json.dumps([metadata for *_, metadata in prompts(f"hf:{folder}/saved:train")])
