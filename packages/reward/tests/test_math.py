"""`math` judges the corpus `math_pairs.jsonl`, beside `exact` and `numeric`; nothing makes it raise or compute for ever."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.reward import ScoreItem, Scorer, ScoringError, ScoringFailure, ScoringResult
from tailrace.reward.verifiers import cpu_budget_s, exact, numeric, unmatched
from tailrace.reward.verifiers.math import math

PAIRS = [json.loads(line) for line in (Path(__file__).parent / "math_pairs.jsonl").read_text("utf-8").splitlines()]
README = Path(__file__).parents[1] / "README.md"
ANSWERS = sorted({pair["reference"] for pair in PAIRS})
NOTATION = r"""
    1 2 x n i e + - * / ^ { } ( ) [ ] , = < % $ ! | _ . √ ² ½ & and or cm 12 10^{ \le \pm \frac \sqrt \pi \cup \in \infty \text{
    \sin \log_ \binom \{ \} \begin{pmatrix} \end{pmatrix} \\ \approx \sum_{n=1}^ \int \lim_{x\to0} dx
""".split()  # noqa: SIM905 (sixty lines otherwise)


def said(answer):
    return f"<answer>{answer}</answer>"


@cache
def verdict(verifier, number):
    """Whether a pair is right by a verifier; None where it cannot judge."""
    try:
        return verifier(PAIRS[number]["response"], PAIRS[number]["reference"], {}) == 1.0
    except ScoringError:
        return None


def judged(verifier):
    """How many of the pairs a verifier judges rightly, wrongly either way, or not at all."""
    found = Counter()
    for number, pair in enumerate(PAIRS):
        right = verdict(verifier, number)
        if right is None:
            found["not judged"] += 1
        else:
            found["right" if right == pair["right"] else "false positives" if right else "false negatives"] += 1
    return tuple(found[column] for column in ("right", "false positives", "false negatives", "not judged"))


def test_every_pair_of_the_corpus_is_judged_rightly_but_for_the_known_misses():
    wrong = {number for number, pair in enumerate(PAIRS) if verdict(math, number) != pair["right"]}
    known = {number for number, pair in enumerate(PAIRS) if pair.get("known_miss")}
    assert wrong == known
    assert all(PAIRS[number]["right"] for number in known), "a known miss earns nothing; no wrong answer earns anything"


def test_no_answer_that_can_be_matched_is_said_to_be_matched_by_none():
    matrix = (
        r"\begin{pmatrix}"
        + r" \\ ".join(" & ".join(map(str, range(row, row + 5))) for row in range(5))
        + r"\end{pmatrix}"
    )
    long = (matrix, ", ".join(map(str, range(40))), " + ".join(f"{n} x^{n}" for n in range(2, 20)))
    for reference in long:
        assert math(said(reference.replace(" & ", "&").replace(", ", ",").replace(" + ", "+")), reference, {}) == 1.0
    matched = [pair["reference"] for pair in PAIRS if pair["right"] and not pair.get("known_miss")]
    assert {unmatched("math", reference) for reference in (*long, *matched)} == {""}
    assert "30 words" in unmatched("math", "It is so. " * 10)


def test_the_readme_says_how_each_verifier_judges_the_corpus():
    table = README.read_text()
    for name, verifier in (("exact", exact), ("numeric", numeric), ("math", math)):
        figures = " | ".join(map(str, judged(verifier)))
        assert f"| `{name}` | {figures} |" in table


def test_the_pairs_differ_and_the_readme_says_how_many_there_are():
    assert len(PAIRS) == len({(pair["reference"], pair["response"]) for pair in PAIRS}) > 800
    assert f"{len(PAIRS)} pairs" in README.read_text()


def test_what_is_equal_is_equal_both_ways_round_and_to_itself(deep):
    for answer in ANSWERS if deep else ANSWERS[::6]:
        assert math(said(answer), answer, {}) == 1.0, answer


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(ANSWERS), st.text() | st.lists(st.sampled_from(NOTATION), max_size=12).map("".join))
def test_no_response_makes_it_raise(reference, response):
    for text in (response, said(response), rf"\boxed{{{response}}}"):
        assert math(text, reference, {}) in (0.0, 1.0)


@settings(deadline=None, max_examples=100)
@given(st.integers(-(10**30), 10**30), st.integers(1, 10**6))
def test_a_number_is_right_in_every_notation_and_its_neighbour_in_none(value, bottom):
    notations = [
        f"{value}",
        f"{value:,}",
        f"${value}$",
        f"{value}.0",
        rf"\frac{{{value * bottom}}}{{{bottom}}}",
        f"x={value}",
    ]
    for written in notations:
        assert math(said(written), str(value), {}) == 1.0, written
        assert math(said(written), str(value + 1), {}) == 0.0, written


@pytest.mark.parametrize("written", [r"x \in (1,2)", r"x\in(1,2)", r"x \in (1, 2)", r"t \in (1,2)"])
@pytest.mark.parametrize("reference", ["x=1, y=2", "1, 2", "1 and 2"])
def test_a_name_in_an_interval_is_no_point_and_no_list(written, reference):
    assert math(said(written), reference, {}) == 0.0
    assert math(said(reference), written, {}) == 0.0
    assert math(said(written), "1 < x < 2" if written[0] == "x" else "(1,2)", {}) == 1.0


@pytest.mark.deep
def test_no_answer_is_taken_for_an_unlike_one():
    """Accepted answers of one reference are those of another only where both references accept each other's text."""
    seed = 1
    rng = random.Random(seed)
    pairs = [
        (reference, pair) for reference in ANSWERS for pair in PAIRS if pair["right"] and pair["reference"] != reference
    ]
    for reference, pair in rng.sample(pairs, 5_000):
        own = pair["reference"]
        if math(pair["response"], reference, {}) == 1.0:
            alike = (math(said(own), reference, {}), math(said(reference), own, {}))
            assert any(alike) or "m" in pair["response"] + own + reference, (seed, reference, pair)


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9}}",
        "9**9**9",
        "(10^{10})!",
        "((5!)!)!",
        r"\binom{1000000000}{500000000}",
        r"\sum_{n=1}^{1000000000} n",
        r"\prod_{n=1}^{100000} n",
        "(1+1)^{10^{9}}",
        "2^{2^{2^{2^{2^{2}}}}}",
        "1e999999999",
        "10^{-10^{10}}",
        "(" * 300 + "8" + ")" * 300,
        r"\frac{1}{" * 90 + "8" + "}" * 90,
        "-" * 399 + "8",
        "1+" * 199 + "1",
        "x = " * 240 + "8",
        "9" * 990,
        "{" * 500,
        ",".join("123456789" * 50),
    ],
)
def test_what_would_take_for_ever_is_wrong_within_the_budget(answer):
    for reference in ("7", "x+1", r"\{1,2\}"):
        before = time.process_time()
        assert math(said(answer), reference, {}) == 0.0
        assert time.process_time() - before < cpu_budget_s(math)


@pytest.mark.parametrize("verifier", ["numeric", "math"])
def test_many_words_behind_a_number_are_read_in_one_way(verifier):
    """Each pair of words that may be joined in two ways would double the time: 30 words took minutes."""
    words = "12 since the first of them had more of it than the others and " + "so on and " * 30
    responses = [said(f"{words}!"), said(f"{words}, or 13"), f"#### 1. {words}!\n", f"#### {words}\nIt is 12!"]
    with Scorer() as scorer:
        found = scorer.score([ScoreItem(str(n), each, "12", verifier) for n, each in enumerate(responses)])
    assert [type(outcome) for outcome in found] == [ScoringResult] * len(responses), found
    assert not any(outcome.over_budget for outcome in found)


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        ("答案是18", 1.0), ("答案是**18**。", 1.0), ("共有**18**个苹果", 1.0), ("所以是18个。", 1.0), ("答えは`18`です", 1.0),
        ("答案是**19**。", 0.0), ("答案是x18", 0.0), ("答案是18x", 0.0),
    ],
)  # fmt: skip
def test_a_number_may_stand_among_words_without_spaces(response, reward):
    assert math(response, "18", {}) == reward


def test_a_verifier_declares_its_budget():
    assert cpu_budget_s(math) == math.cpu_budget_s == 2.0
    assert cpu_budget_s(exact) is None


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.sampled_from("xyzn"), st.integers(-9, 9)), min_size=1, max_size=6), st.integers(1, 400))
def test_what_is_added_to_a_polynomial_is_found_however_small_and_wherever_it_vanishes(factors, places):
    """No points are known beforehand, and quotients of polynomials are compared exactly."""
    product = "".join(f"({name}-{root})" for name, root in factors)
    assert math(said(f"x+1+{product}"), "x+1", {}) == 0.0
    assert math(said(f"x+1+\\frac{{{product}}}{{10^{{{places}}}}}"), "x+1", {}) == 0.0
    assert math(said(f"\\frac{{(x+1){product}}}{{{product}}}"), "x+1", {}) == 1.0


def test_processes_compare_at_their_own_points_and_judge_alike(tmp_path):
    program = (
        "from tailrace.reward.verifiers.math.expressions import _POINTS, _RESIDUES, equal\n"
        "same = equal('x+1', '1+x'), equal(r'\\sqrt{x}', 'x'), equal(r'\\sin 2x', r'2\\sin x\\cos x')\n"
        "print(_POINTS[0][0], _RESIDUES[0][0], *same)"
    )
    said = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
        for _ in "ab"
    ]
    assert said[0][2:] == said[1][2:] == ["True", "False", "True"]
    assert said[0][0] != said[1][0]
    assert said[0][1] != said[1][1]


def test_it_works_beyond_the_main_thread_and_is_not_disturbed_by_alarms():
    with Scorer(workers=1) as scorer:
        (right, wrong, cannot) = scorer.score(
            [
                ScoreItem("a", said("x<3"), r"(-\infty, 3)", "math"),
                ScoreItem("b", said("x>3"), r"(-\infty, 3)", "math"),
                ScoreItem("c", said("3"), " ", "math"),
            ]
        )
    assert (right, wrong) == (ScoringResult("a", 1.0), ScoringResult("b", 0.0))
    assert isinstance(cannot, ScoringFailure)
    assert "expected one that is not empty" in cannot.reason


@pytest.mark.parametrize("library", ["math_verify", "sympy", "latex2sympy2_extended"])
def test_without_a_library_it_is_a_failure_of_one_line_and_no_reward(tmp_path, monkeypatch, library):
    (tmp_path / f"{library}.py").write_text(f"raise ModuleNotFoundError('not here', name={library!r})")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with Scorer(workers=1) as scorer:
        (outcome,) = scorer.score([ScoreItem("a", said("1"), "1", "math")])
    assert isinstance(outcome, ScoringFailure)
    assert "pip install 'tailrace-reward[math]'" in outcome.reason
    assert "\n" not in outcome.reason
