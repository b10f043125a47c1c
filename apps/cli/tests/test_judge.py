"""A judge from the command line: fine-tuned, asked, and refused in one line."""

import json
from typing import Any

import pytest

from tailrace.cli.components.judge import agreement, read_items
from tailrace.cli.main import main
from tailrace.reward.judge import Unjudged


def test_agreement_by_hand():
    outcomes: list[Any] = [0.9, 0.5, 0.2, Unjudged("too long", permanent=True), 0.7]
    found = agreement(outcomes, [True, False, False, False, None])
    assert found == pytest.approx({"agreement": 0.5, "majority": 0.75, "wrong_called_right": 0.5})
    assert agreement(outcomes, [None] * 5) == {}


@pytest.mark.deep
def test_one_is_fitted_and_then_scores_within_a_budget(tmp_path, capfd):
    directory, figures = tmp_path / "judge", tmp_path / "figures.json"
    command = ["judge", "fit", str(directory), "--steps", "2", "--heldout", "20", "--examples", "500"]
    assert main([*command, "--json", str(figures)]) == 0
    fitted = json.loads(figures.read_text())
    assert f"agrees with the exact verifier on {fitted['agreement']:.1%} of 20 held-out" in capfd.readouterr().out
    rows = (directory / "heldout.jsonl").read_text().splitlines()
    assert len(rows) == 20
    files = [str(directory / "heldout.jsonl"), "--model", str(directory), "--template", str(directory / "template.txt")]
    assert main(["judge", "score", *files, "--memory-mib", "5"]) == 0
    *scores, summary = map(json.loads, capfd.readouterr().out.splitlines())
    assert all(0 <= row["score"] <= 1 for row in scores)
    assert len(scores) == summary["scored"] == 20
    assert summary["agreement"] == fitted["agreement"]
    assert summary["peak_weight_bytes"] < 5 << 20
    assert main(["judge", "score", *files, "--memory-mib", "1"]) == 2
    complaint = capfd.readouterr().err.splitlines()[-1]
    assert complaint.startswith("tailrace: found memory_bytes = 1,048,576 for the judge")
    assert "expected at least" in complaint


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("{}", "found no JSON object with a response"),
        ("[]", "found no JSON object with a response"),
        ('{"response": 1}', "expected texts"),
        ('{"response": "1", "right": 2}', "expected texts, and true or false for right"),
        ("", "found no rows"),
        ("\n \n", "found no rows"),
        (b'{"response": "\xff"}', "found no JSON object with a response"),
    ],
)
def test_what_is_no_file_of_responses_is_one_line(tmp_path, capfd, row, complaint):
    file = tmp_path / "rows.jsonl"
    file.write_bytes(row if isinstance(row, bytes) else row.encode())
    assert main(["judge", "score", str(file), "--model", "none", "--template", "{response}"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert complaint in line
    assert str(file) in line


def test_rows_are_what_stands_between_line_feeds(tmp_path):
    """Text has other ends of lines in it, such as U+2028; lines may be empty."""
    file = tmp_path / "rows.jsonl"
    said = ["one\u2028line", "another\x85one"]
    file.write_text(
        "\n\n".join(json.dumps({"response": text}, ensure_ascii=False) for text in said) + "\n", encoding="utf-8"
    )
    items, right = read_items(file)
    assert [item.response for item in items] == said
    assert right == [None, None]


def test_what_stands_in_a_folder_is_not_replaced_by_a_judge(tmp_path, capfd):
    """The model takes the place of its directory: all that was in it was gone."""
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["judge", "fit", str(tmp_path), "--steps", "1", "--examples", "8", "--heldout", "8"]) == 2
    assert "found files, expected a new folder" in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_an_unknown_task_and_a_missing_model_are_one_line(tmp_path, capfd):
    assert main(["judge", "fit", str(tmp_path / "judge"), "--task", "none"]) == 2
    assert "found the task 'none'" in capfd.readouterr().err
    file = tmp_path / "rows.jsonl"
    file.write_text('{"response": "1"}')
    assert main(["judge", "score", str(file), "--model", str(tmp_path / "none"), "--template", "{response}"]) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("tailrace:")]
    assert "found no readable" in line
