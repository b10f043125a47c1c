"""Verifiers give 0.0 to a wrong answer, whatever it looks like, and raise only when they cannot judge."""

import contextlib
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.contracts import PluginError
from tailrace.reward import ScoringError, load_verifier, verifier_names
from tailrace.reward.items import of_turns
from tailrace.reward.verifiers import exact, numeric
from tailrace.reward.verifiers.basic import parse_number

CHAIN = {"dataset": "chain_sum"}


def reasoning_gym_verifier(response, answer, metadata):
    from tailrace.reward.verifiers import gym  # seconds, which a collection need not take

    return gym.reasoning_gym_verifier(response, answer, metadata)


def test_built_ins_come_through_the_plugin_door():
    assert {"exact", "math", "numeric", "reasoning-gym"} <= set(verifier_names())
    with pytest.raises(PluginError, match="did you mean 'numeric'"):
        load_verifier("numerik")


@settings(deadline=None)  # the first call imports reasoning-gym
@given(st.text())
def test_no_response_makes_a_verifier_raise(response):
    for verifier, metadata in ((exact, {}), (numeric, {}), (reasoning_gym_verifier, CHAIN)):
        for text in (response, f"<answer>{response}</answer>", f"\\boxed{{{response}}}"):
            assert verifier(text, "12", metadata) in (0.0, 1.0)


@given(st.integers(-(10**30), 10**30))
def test_numbers_are_compared_exactly(value):
    for written in (str(value), f"{value:,}", f"{value}.0", f"{value}.", f"{2 * value}/2", f"${value}", f"{value:+d}"):
        assert numeric(f"<answer>{written}</answer>", str(value), {}) == 1.0, written
    assert numeric(f"<answer>{value + 1}</answer>", str(value), {}) == 0.0


@given(st.fractions(max_denominator=10**6))
def test_fractions_are_exact(value):
    assert parse_number(f"{value.numerator}/{value.denominator}") == value
    assert parse_number(rf"\frac{{{value.numerator}}}{{{value.denominator}}}") == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,000", 1000), ("2e3", 2000), ("-.5", Fraction(-1, 2)), ("\N{MINUS SIGN}4", -4), ("5%", 5), (r"12\text{ km}", 12),
        (r"-\frac{1}{3}", Fraction(-1, 3)), ("0.1", Fraction(1, 10)),
        (r"50\%", 50), (r"\$5", 5), (r"1{,}000", 1000), ("3 / 4", Fraction(3, 4)), (r"\(5\)", 5), ("$5$", 5),
        ("1,234,567.5", Fraction(2469135, 2)),
        ("5_2", None), (r"5\text{ or }7", None), (r"5\text{ or }7\text{ km}", None), ("5$2", None), ("5%3", None),
        (r"5\) 2", None),
        (r"\text{5}2", None), ("1_000", None), ("5€6", None), (r"5\ 2", None), (r"5\!2", None), ("0x10", None), ("5,5", None),
        ("1,2345", None),
        ("1,00", None), ("1/0", None), ("nan", None), ("Infinity", None), ("1e999999999", None), ("9" * 500, None),
        ("-1 1/2", Fraction(-3, 2)), (r"1\frac{1}{2}", Fraction(3, 2)), (r"$-1 \frac{1}{20}$", Fraction(-21, 20)),
        ("1 3/2", None), ("1 1/0", None), ("1 -1/2", None), (r"1\frac{-1}{2}", None), ("0.5 1/2", None),
        ("", None), ("1 or 2", None), ("1 2", None), ("- 3", -3), ("twelve", None),
    ],
)  # fmt: skip
def test_number_formats(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("<answer>5 km</answer>", "5", 1.0), ("<answer>5 km</answer>", "5 km", 1.0), ("<answer>5</answer>", "5 km", 1.0),
        ("<answer>5 m</answer>", "5 km", 0.0), ("<answer>5 apples</answer>", "5", 1.0), (r"\boxed{5\text{ km/h}}", "5", 1.0),
        ("<answer>$5 per day</answer>", "5", 1.0), ("<answer>5 m/s</answer>", "5 m/s^2", 0.0),
        ("<answer>5.0 kg</answer>", "5", 1.0),
        ("<answer>6 km</answer>", "5", 0.0), ("<answer>5 or 7 km</answer>", "5", 0.0), ("<answer>5 million</answer>", "5", 0.0),
        ("<answer>5_2</answer>", "5", 0.0), ("<answer>5_2</answer>", "52", 0.0), (r"<answer>5\text{ or }7</answer>", "57", 0.0),
        ("<answer>**5**</answer>", "5", 1.0), (r"\boxed {5}", "5", 1.0), (r"\fbox{5 cm}", "5", 1.0),
        ("<answer>5x</answer>", "5", 0.0), ("<answer>5 %</answer>", "5 km", 0.0), (r"<answer>\$5</answer>", "5%", 0.0),
        (r"<answer>5\%</answer>", "5", 1.0), ("<answer>5</answer>", "5%", 1.0),
        ("<answer>5</answer>", "So 2 + 3 = 5 pens.\n#### 5", 1.0), ("<answer>2</answer>", "So 2 + 3 = 5 pens.\n#### 5", 0.0),
    ],
)  # fmt: skip
def test_a_number_may_have_a_unit_and_a_reference_its_solution(response, answer, reward):
    assert numeric(response, answer, {}) == reward


def test_exact_compares_with_what_a_solution_ends_in():
    assert exact("<answer>Paris</answer>", "It lies on the Seine.\n#### Paris", {}) == 1.0
    assert exact("<answer>It lies on the Seine.</answer>", "It lies on the Seine.\n#### Paris", {}) == 0.0


def test_a_float_would_call_these_equal():
    assert numeric("<answer>9007199254740993</answer>", "9007199254740992", {}) == 0.0


def test_without_markup_the_last_number_or_the_whole_text_counts():
    assert numeric("so it is 7 + 5 = 12.", "12", {}) == 1.0
    for half in (r"so it is $\frac{1}{2}$.", r"so it is \dfrac{1}{2}"):
        assert [numeric(half, answer, {}) for answer in ("2", "0.5")] == [0.0, 1.0]
        assert [load_verifier("math")(half, answer, {}) for answer in ("2", "0.5")] == [0.0, 1.0]
    for more in ("so it takes 1 1/2 h", r"so it is 1\frac{1}{2}."):
        assert [numeric(more, answer, {}) for answer in ("1/2", "2", "1.5")] == [0.0, 0.0, 1.0]
        assert [load_verifier("math")(more, answer, {}) for answer in ("1/2", "2", "1.5")] == [0.0, 0.0, 1.0]
    assert exact("  PARIS. ", "Paris", {}) == 1.0
    assert exact("<answer>Paris</answer>", "Lyon", {}) == 0.0


@pytest.mark.parametrize("verifier", [numeric, load_verifier("math")])
@pytest.mark.parametrize("minus", ["-", "\u2212", "\u2013"])
def test_a_minus_counts_however_it_is_written(verifier, minus):
    for response in (f"so it is {minus}3.", f"<answer>{minus}3</answer>"):
        assert verifier(response, "-3", {}) == 1.0
        assert verifier(response, "3", {}) == 0.0


@pytest.mark.parametrize("verifier", [numeric, load_verifier("math")])
@pytest.mark.parametrize("separator", [",", "{,}", "\\,", "\\!", "\\;", "\\:", "\\ "])
def test_thousands_count_however_they_are_set_apart(verifier, separator):
    for response in (f"so it is $12{separator}000$.", f"<answer>12{separator}000</answer>"):
        assert verifier(response, "12000", {}) == 1.0
        assert verifier(response, "0", {}) == 0.0


TALK = "It is 7. <answer>8</answer>"  # a turn, an answer of the environment, and another turn: only the last counts


@pytest.mark.parametrize("verifier", [exact, numeric, load_verifier("math"), reasoning_gym_verifier])
def test_of_several_turns_the_answer_is_in_the_last(verifier):
    whole = f"<answer>3</answer> python says <answer>12</answer> {TALK} you said <answer>12</answer>"
    of_last = CHAIN | of_turns(2, 0.5, True, TALK)
    assert verifier(whole, "8", of_last) == 1.0
    assert verifier(whole, "12", of_last) == 0.0
    assert verifier(whole, "12", CHAIN) == 1.0
    assert verifier(whole, "12", CHAIN | of_turns(2, 0.5, True, "nothing")) == 0.0


def test_the_reward_of_an_environment_is_the_sum_of_its_steps():
    environment = load_verifier("environment")
    assert environment("whatever", "", of_turns(3, -1.25, False, "")) == -1.25
    assert environment("it asked nothing", "", {}) == 0.0


def test_a_reference_that_is_no_number_is_our_failure():
    with pytest.raises(ScoringError, match="expected a number"):
        numeric("12", "twelve", {})


def test_a_part_of_the_score_is_no_reward_unless_the_row_asks_for_it():
    response = "<answer>212</answer>"
    assert reasoning_gym_verifier(response, "12", CHAIN) == 0.0
    assert reasoning_gym_verifier(response, "12", CHAIN | {"partial": True}) == pytest.approx(2 / 3)
    assert reasoning_gym_verifier("<answer>+012.0</answer>", "12", CHAIN | {"entry": None}) == 1.0
    assert reasoning_gym_verifier("12, and no tag", "12", CHAIN) == 0.0


def test_a_gym_scorer_that_raises_on_a_malformed_answer_gives_zero():
    import reasoning_gym

    item = reasoning_gym.create_dataset("prime_factorization", size=1, seed=1)[0]
    with pytest.raises(ValueError, match="invalid literal"):
        reasoning_gym.get_score_answer_fn("prime_factorization")("bl{a", item)
    metadata = {"dataset": "prime_factorization", "entry": item["metadata"]}
    assert reasoning_gym_verifier("<answer>bl{a</answer>", item["answer"], metadata) == 0.0
    assert reasoning_gym_verifier(f"<answer>{item['answer']}</answer>", item["answer"], metadata) == 1.0


EVALUATING = ("binary_matrix", "countdown", "intermediate_integration", "n_queens", "number_sorting")
EVALUATING += ("polynomial_multiplication", "puzzle24", "simple_integration", "spiral_matrix", "string_insertion")


@pytest.mark.deep(every=2)
@pytest.mark.parametrize("dataset", EVALUATING)
def test_a_gym_scorer_runs_nothing_that_a_model_or_a_row_says(dataset, tmp_path):
    import reasoning_gym

    item = reasoning_gym.create_dataset(dataset, size=1, seed=1)[0]
    metadata = {"dataset": dataset, "entry": item["metadata"], "partial": True}
    right = item["metadata"].get("expression") or item["answer"]
    assert reasoning_gym_verifier(f"<answer>{right}</answer>", item["answer"], metadata) == 1.0
    made = tmp_path / "made"
    for call in (f"__import__('pathlib').Path({str(made)!r}).touch()", f"open({str(made)!r}, 'w')"):
        for said in (
            call,
            f"[{call}]",
            f"[]+[{call}]",
            f"sin({call!r})",
            f"[n for n in [{call}]]",
            f"24 + 0*bool({call})",
        ):
            assert reasoning_gym_verifier(f"<answer>{said}</answer>", item["answer"], metadata) < 0.1
            row = metadata | {"entry": item["metadata"] | {"integrand": said}}
            with contextlib.suppress(ScoringError):  # it is our failure, and no run of it
                reasoning_gym_verifier(f"<answer>{right}</answer>", said, row)
    assert not made.exists()


def test_gym_scorers_read_what_people_write():
    from tailrace.reward.gym import evaluated, import_reasoning_gym, parsed

    import_reasoning_gym()
    assert evaluated(" [['Q', '_'], (-1, 2.5, 0x10 << 3)]") == [["Q", "_"], (-1, 2.5, 128)]
    assert parsed("(3 + 4)*5 - 6/2") == 32
    assert (
        str(parsed("2*x**3/3 + exp(2*x)*sin(x) - log(x + 1)**-2 + C"))
        == "C + 2*x**3/3 + exp(2*x)*sin(x) - 1/log(x + 1)**2"
    )
    for said in (
        "9**9**9",
        "((9**999)**999)**999",
        "(1 << 9**6) * 2",
        "1 << 99999",
        "'a'*9999999",
        "[0]*9999999",
        "2**-'a'",
        "x",
        "(",
        "(" * 999,
        "1+" * 9999,
        "[*range(9)]",
    ):
        with pytest.raises(ValueError, match="expected literals alone"):
            evaluated(said)
    for said in (
        "9**9**9",
        "((9**999)**999)**999",
        "2**(x*9**9**9)",
        "sqrt(9**9**9)",
        "x.args",
        "S('1')",
        "exp('1')",
        "__import__",
        "lambda: 1",
        "N(1, n=9)",
        "x[0]",
        "(yield)",
        "x := 1",
    ):
        with pytest.raises(ValueError, match="expected a formula alone"):
            parsed(said)


def test_metadata_that_a_gym_scorer_cannot_use_is_our_failure():
    with pytest.raises(ScoringError, match="key 'dataset'"):
        reasoning_gym_verifier("<answer>1</answer>", "1", {})
    with pytest.raises(ScoringError, match="expected one that reasoning-gym registers"):
        reasoning_gym_verifier("<answer>1</answer>", "1", {"dataset": "no-such-task"})
    with pytest.raises(ScoringError, match="raises on the reference answer"):
        reasoning_gym_verifier("<answer>1</answer>", "1", {"dataset": "word_sorting"})
