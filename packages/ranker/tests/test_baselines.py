"""What each baseline knows, and what it does not."""

import dataclasses

import pytest

from tailrace.ranker import Example, LengthRanker
from tailrace.ranker.baselines.lexical import Lexical
from tailrace.ranker.testing import made_examples


def train(examples, method):
    return LengthRanker.train(examples, method)


def test_random_says_nothing_and_always_the_same():
    examples = made_examples(400, seed=1)
    first, again = (LengthRanker.train(examples, "random", seed=3) for _ in range(2))
    prompts = [example.prompt for example in examples]
    assert first.predict(prompts) == again.predict(prompts)
    assert first.rank(prompts) != LengthRanker.train(examples, "random", seed=4).rank(prompts)
    assert abs(first.report(examples)["tau_b"]) < 0.1


def test_prompt_length_ranks_by_characters():
    ranker = train([Example("a" * size, (size,) * 50) for size in range(1, 30)], "prompt-length")
    assert ranker.rank(["aa", "aaaaaaa", "aaaa"]) == [1, 2, 0]
    assert ranker.predict(["a" * 25])[0].p50 == pytest.approx(25, abs=2)


def test_family_mean_knows_the_family_by_its_words():
    examples = [
        *(Example(f"Compute {n} + {n + 1}", (10 + n % 3,), family="sums") for n in range(30)),
        *(Example(f"Sort these words: {'ab ' * (n % 4)}", (200 + n % 5,), family="words") for n in range(30)),
    ]
    ranker = train(examples, "family-mean")
    short, long = ranker.predict(["Compute 77 + 1234", "Sort these words: zz yy"])
    assert short.p50 == pytest.approx(11, abs=1)
    assert long.p50 == pytest.approx(202, abs=2)
    assert ranker.rank(["Compute 3 + 3", "Sort these words: x"]) == [1, 0]


def test_without_families_all_prompts_are_one():
    examples = [dataclasses.replace(example, family="") for example in made_examples(40)]
    scores = {prediction.score for prediction in train(examples, "family-mean").predict(["a", "Sum up: 1 + 2"])}
    assert len(scores) == 1


def test_last_length_is_that_of_the_newest_version():
    ranker = train(
        [Example("a", (10,), version=2), Example("a", (500,), version=1), Example("b", (60,), version=1)], "last-length"
    )
    assert ranker.rank(["a", "b"]) == [1, 0]
    ranker.update([Example("a", (90,), version=3)])
    assert ranker.rank(["a", "b"]) == [0, 1]
    assert ranker.predict(["b"])[0].score == 60, "what an update lacks is not forgotten"


def test_siblings_draws_few_samples_towards_the_mean_of_all():
    examples = [Example(f"{n}", (100 + n, 100 - n, 104 + n)) for n in range(60)]
    ranker = train([*examples, Example("once", (1000,)), Example("often", (900,) * 30)], "siblings")
    once, often, never = ranker.predict(["once", "often", "never seen"])
    assert often.score > once.score > never.score, "thirty samples of 900 are more certain than one of 1,000"


def test_lexical_finds_more_than_the_length_of_the_prompt():
    examples, others = made_examples(300, seed=5), made_examples(150, seed=6)
    methods = {"lexical": Lexical(trees=80), "prompt-length": "prompt-length"}
    found = {name: train(examples, method).report(others) for name, method in methods.items()}
    assert found["lexical"]["recall20"] > found["prompt-length"]["recall20"] + 0.05
    assert found["lexical"]["tau_b"] > found["prompt-length"]["tau_b"] + 0.1
    assert found["lexical"]["recall20"] <= found["lexical"]["ceiling20"] + 0.1
    assert 0.8 < found["lexical"]["coverage90"] < 0.98
