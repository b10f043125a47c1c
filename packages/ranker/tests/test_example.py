"""What is no example is one line, whatever is wrong with it."""

import pytest

from tailrace.ranker import Example, ExampleError, LengthRanker, Prediction, PredictionError

BAD = {
    "no lengths": ({"prompt": "a", "lengths": []}, "found no lengths for the prompt 'a', expected at least one"),
    "a length of 0": (
        {"prompt": "a", "lengths": [3, 0]},
        "found a length of 0 for the prompt 'a', expected whole numbers from 1",
    ),
    "a length of half a token": ({"prompt": "a", "lengths": [1.5]}, "found a length of 1.5"),
    "a length that is a flag": ({"prompt": "a", "lengths": [True]}, "found a length of True"),
    "lengths as text": ({"prompt": "a", "lengths": "12"}, "found lengths of type str, expected a list"),
    "too few flags": (
        {"prompt": "a", "lengths": [1, 2], "truncated": [True]},
        "found 1 values of truncated and 2 lengths",
    ),
    "a flag that is none": ({"prompt": "a", "lengths": [1], "truncated": [1]}, "found 1 in truncated"),
    "a prompt of ids": ({"prompt": [1, 2], "lengths": [1]}, "found a prompt of type list, expected text"),
    "a family that is none": ({"prompt": "a", "lengths": [1], "family": 3}, "found a family of type int"),
    "a version that is none": ({"prompt": "a", "lengths": [1], "version": "x"}, "found the version 'x'"),
    "no prompt": ({"lengths": [1]}, "found no key 'prompt'"),
    "another key": ({"prompt": "a", "lengths": [1], "length": 3}, "found the key 'length', expected prompt, lengths"),
    "a long prompt": ({"prompt": "b" * 400, "lengths": []}, "b…'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows(case):
    row, said = BAD[case]
    with pytest.raises(ExampleError) as caught:
        Example.from_json(row)  # type: ignore[arg-type]
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_lists_become_tuples():
    example = Example.from_json({"prompt": "a", "lengths": [3, 4], "truncated": [False, True]})
    assert example.samples == ((3, False), (4, True))
    assert hash(example) == hash(Example("a", (3, 4), (False, True)))


@pytest.mark.parametrize(("examples", "said"), [([], "found no examples"), (["a"], "found str among the examples")])
def test_no_examples(examples, said):
    with pytest.raises(ExampleError, match=said):
        LengthRanker.train(examples, "random")


@pytest.mark.parametrize("values", [(0.5, 2, 0), (3, 2, 0), (1, float("inf"), 0), (1, 2, float("nan"))])
def test_what_is_no_prediction(values):
    with pytest.raises(PredictionError):
        Prediction(*values)
