"""Answers are found in whatever a model writes, and nothing raises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.reward import load_verifier
from tailrace.reward.extraction import (
    boxed,
    boxes,
    final_answer,
    last_number,
    python_blocks,
    solution_answer,
    tagged,
)

MARKUP = st.lists(
    st.sampled_from(
        [
            "<answer>",
            "</answer>",
            "\\boxed{",
            "{",
            "}",
            "<think>",
            "12",
            "-",
            ",",
            "1,000",
            ".",
            "e9",
            "/",
            " ",
            "\n",
            "٣",
            "\x00",
        ]
    )
    | st.text(max_size=5),
    max_size=30,
).map("".join)


@given(MARKUP)
def test_nothing_raises_and_what_is_found_is_in_the_text(response):
    for find in (tagged, boxed, last_number, final_answer):
        found = find(response)
        assert found is None or found in response


@given(MARKUP, st.text(alphabet="0123456789 abc", max_size=10))
def test_the_last_complete_tag_counts(noise, answer):
    assert tagged(f"{noise}<answer>{answer}</answer>") == answer.strip()


@pytest.mark.parametrize(
    ("response", "found"),
    [
        ("<answer>12</answer>", "12"),
        ("<answer> 12\n</answer>", "12"),
        ("<answer>1</answer> no, <answer>2</answer>", "2"),
        ("<answer>1 <answer>2</answer>", "2"),
        ("<answer>1</answer> and <answer>2", "1"),
        ("<answer></answer>", ""),
        ("<answer>12", None),
        ("12</answer>", None),
        ("", None),
        (r"so \boxed{12}", "12"),
        (r"so \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2", None),
        (r"<answer>\boxed{7}</answer>", "7"),
    ],
)
def test_odd_responses(response, found):
    assert final_answer(response) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\boxed{1} and \boxed{\frac{2}{3}}", ["1", r"\frac{2}{3}"]),
        (r"\boxed{\boxed{1}}", [r"\boxed{1}"]),
        (r"\boxed{1} and \boxed{2", ["1"]),
        ("1", []),
    ],
)
def test_all_boxes(text, found):
    assert boxes(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("7 + 5 = 12", "12"),
        ("it is -3.", "-3"),
        ("1,234.5 km", "1,234.5"),
        ("3/4", "3/4"),
        ("none", None),
        ("it is \u22123.", "\u22123"),
        ("it is \u2212.5e\u22123", "\u2212.5e\u22123"),
        ("it is \u20133.", "\u20133"),
        ("pages 3\u20135", "5"),
        (r"$12{,}345.5$", "12{,}345.5"),
        (r"it is \(1\,000\,000\).", r"1\,000\,000"),
        (r"it is $\frac{1}{2}$.", r"\frac{1}{2}"),
        (r"it is -1\dfrac {1}{20}", r"-1\dfrac {1}{20}"),
        ("it takes 1 1/2 hours", "1 1/2"),
        ("in 2024 it was 1/2", "1/2"),
    ],
)
def test_the_last_number(text, found):
    assert last_number(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("```json\n{}\n```\nso\n```python\nprint(1)\n```", ["print(1)\n"]),
        ("```Python3\na\n```\n```\nb\n```\n~~~ py\nc\n~~~", ["a\n", "b\n", "c\n"]),
        ("```python\nprint(1)```", ["print(1)"]),
        ("```bash\nls\n```", []),
        ("```python\nprint(1)", []),
        ("print(1)", []),
    ],
)
def test_blocks_of_python(text, found):
    assert python_blocks(text) == found


def test_an_answer_behind_marks_is_found_at_once_among_a_million_spaces():
    """A look at each of them from each of them takes an hour."""
    spaces = " " * 1_000_000
    assert solution_answer(f"1 + 1\n#### 2 {spaces}\n{spaces}") == "2"
    assert solution_answer(f"#### 2{spaces}b\nb") == f"#### 2{spaces}b\nb"
    math = load_verifier("math")
    assert math(f"#### 2{spaces}\nbecause", "2", {}) == 1.0
    lines = spaces.replace("  ", " \n")
    for response in (
        f"The answer is 2{lines}",
        rf"\times{spaces}a 2{lines}.",
        f"It is ({lines}2{spaces}).",
        f"#### {'~' * 100_000}\n2",
    ):
        assert math(response, "2", {}) == 1.0
    assert math(f"#### a{spaces}b", "2", {}) == 0.0
