"""Rows of programs in files: those of the generated task and others of their form, as JSON Lines and as Parquet."""

import json

import pytest

from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.prompts.data_check import check_data
from tailrace.pipeline.run.prompts.reading import read_files
from tailrace.pipeline.run.scorer_setup import score_settings
from tailrace.reward.code import read_tests
from tailrace.reward.tasks import get_task, write_jsonl

pytestmark = pytest.mark.usefixtures("one_probe_of_each_sandbox")
WHOLE = {
    "prompt": "Read a number and print its double.",
    "answer": "print(2 * int(input()))",
    "verifier": "code",
    "metadata": {"tests": [{"stdin": "3\n", "stdout": "6\n"}], "limits": {"memory_mib": 128}},
}


def written(tmp_path, form, rows):
    path = tmp_path / f"train.{form}"
    if form == "jsonl":
        write_jsonl(path, rows)
    else:
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return validate([("mine", {"task": {"train": str(path)}, "model": {"path": str(tmp_path)}})])


@pytest.fixture
def model(tmp_path):
    """A tokenizer of words with room for every prompt."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 1000}')
    return tmp_path


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.cases(1)
def test_rows_keep_their_tests_limits_and_times(model, form):
    rows = [*get_task("programs").generate("train", 12, 1), WHOLE]
    config = written(model, form, rows)
    assert not check_data(config).faults
    (model / "kept").mkdir()
    read_files(config, model, into=model / "kept")
    kept = [json.loads(line) for line in (model / "kept" / "train.jsonl").read_text().splitlines()]
    for row, found in zip(rows, kept, strict=True):
        assert (found["prompt"], found["answer"], found["verifier"]) == (row["prompt"], row["answer"], "code")
        assert read_tests(found["metadata"]) == read_tests(row["metadata"])


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_rows_that_cannot_be_tested_are_told_with_their_places(model, form):
    right = {"prompt": "q", "answer": "", "verifier": "code"}
    rows = [
        right | {"metadata": {"tests": [{"args": [1], "expected": 2}]}},
        right | {"metadata": {"entry_point": "f", "tests": []}},
    ]
    with pytest.raises(ConfigError) as raised:
        check_data(written(model, form, rows))
    first, second = str(raised.value).splitlines()
    assert "as test 1, expected 'tests'" in first
    assert "found a row without tests" in second


@pytest.mark.parametrize("answer", ["", "print('7' * 3000)"])
def test_rows_that_no_program_can_pass_are_refused_with_or_without_a_reference(model, answer):
    long = WHOLE | {"answer": answer, "metadata": {"tests": [{"stdin": "", "stdout": "7" * 3000}]}}
    config = written(model, "jsonl", [long])
    assert not check_data(config).faults
    small = {"reward": {"code": {"output_kib": 2}}, "task": {"train": str(model / "train.jsonl")}}
    with pytest.raises(
        ConfigError, match="found 3,000 bytes of 'stdout' in test 1 and output_kib = 2, expected a limit"
    ):
        check_data(validate([("mine", small | {"model": {"path": str(model)}})]))


def test_settings_of_programs_reach_the_scheduler(model):
    own = {"memory_mib": 64, "output_kib": 2, "tolerance": 1e-4, "modules": ("numpy",)}
    config = validate(
        [("mine", {"reward": {"code": own}, "task": {"train": "x.jsonl"}, "model": {"path": str(model)}})]
    )
    assert {name: getattr(score_settings(config, ()).code, name) for name in own} == own


@pytest.mark.deep
def test_programs_may_import_the_modules_that_are_named(model):
    row = WHOLE | {"answer": "import numpy\nprint(2 * numpy.int64(input()))"}
    written(model, "jsonl", [row])
    mine = {"task": {"train": str(model / "train.jsonl")}, "model": {"path": str(model)}}
    with pytest.raises(ConfigError, match="found tests that the reference solution fails"):
        check_data(validate([("mine", mine)]))
    assert not check_data(validate([("mine", mine | {"reward": {"code": {"modules": ["numpy"]}}})])).faults
    with pytest.raises(ConfigError, match=r"'reward.code.modules': .*found the module 'no_such'"):
        check_data(validate([("mine", mine | {"reward": {"code": {"modules": ["no_such"]}}})]))
