import asyncio

import pytest

from tailrace.reward import ScoreItem, load_verifier
from tailrace.reward.errors import JudgeError, ScoringError
from tailrace.reward.judge import JudgeItem, JudgeTemplate
from tailrace.reward.judge.process import JudgeBackend


def test_fields_are_filled_in_once_and_other_braces_stay():
    template = JudgeTemplate(r"{prompt} \boxed{x} {response} {other} {answer} {rubric}")
    item = JudgeItem("says {answer}", prompt="asks {response}", answer="12", rubric="be kind")
    assert template.render(item) == r"asks {response} \boxed{x} says {answer} {other} 12 be kind"
    assert template.fields == {"prompt", "response", "answer", "rubric"}


def test_a_file_is_read_without_its_last_newline(tmp_path):
    file = tmp_path / "judge.txt"
    file.write_text("{response}\nRight?\n")
    assert JudgeTemplate(file).text == JudgeTemplate(str(file)).text == "{response}\nRight?"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("Is {answer} right? {reponse}", r"found \{answer\} in the judge's template, expected \{response\} among them"),
        ("", "found no field in the judge's template"),
        ("none.txt", "found no readable judge template none.txt"),
    ],
)
def test_what_is_no_template_is_one_line(source, complaint):
    with pytest.raises(JudgeError, match=complaint) as error:
        JudgeTemplate(source)
    assert "\n" not in str(error.value)


def test_it_names_the_field_that_an_item_leaves_empty():
    template = JudgeTemplate("{response} {rubric}")
    assert template.missing(JudgeItem("", rubric="be kind")) is None
    assert template.missing(JudgeItem("12")) == "rubric"


def test_rows_can_name_it_and_a_worker_without_a_model_says_so():
    with pytest.raises(ScoringError, match="no judge"):
        load_verifier("judge")("<answer>12</answer>", "12", {})


@pytest.mark.parametrize(("metadata", "rubric"), [({}, ""), ({"rubric": None}, ""), ({"rubric": "be kind"}, "be kind")])
def test_a_row_may_have_no_rubric_as_parquet_says_it_too(metadata, rubric):
    class Asked:
        async def score(self, items, timeout_s):
            return [1.0 if items == [JudgeItem("12", rubric=rubric)] else 0.0]

    backend = JudgeBackend(Asked(), 1.0)
    assert asyncio.run(backend.score(ScoreItem("a", "12", "", "judge", metadata))).reward == 1.0
    with pytest.raises(ScoringError, match="found the rubric 5, expected text"):
        asyncio.run(backend.score(ScoreItem("a", "12", "", "judge", {"rubric": 5})))
