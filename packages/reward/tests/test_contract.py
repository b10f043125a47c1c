"""The built-in verifiers keep the contract, and the contract notices those that do not."""

import random

import pytest

from tailrace.reward import load_verifier
from tailrace.reward.testing import check_verifier


@pytest.mark.parametrize(
    ("name", "metadata"), [("exact", {}), ("numeric", {}), ("math", {}), ("reasoning-gym", {"dataset": "chain_sum"})]
)
def test_built_ins_keep_it(name, metadata):
    check_verifier(
        load_verifier(name), right="<answer>12</answer>", wrong="<answer>13</answer>", answer="12", metadata=metadata
    )


def raises(response, answer, metadata):
    return float(int(response.removeprefix("<answer>").removesuffix("</answer>")) == int(answer))


def rewards_everything(response, answer, metadata):
    return 1.0


def is_random(response, answer, metadata):
    return 1.0 if answer in response else -random.random()


def changes_metadata(response, answer, metadata):
    metadata["seen"] = True
    return float(answer in response)


def gives_infinity(response, answer, metadata):
    return 1.0 if answer in response else float("-inf")


def says_everything_is_right(response, answer, metadata):
    return {"reward": float(answer in response), "correct": True}


def says_something_else(response, answer, metadata):
    return {"score": 1.0}


def grades(response, answer, metadata):
    right = f"<answer>{answer}</answer>" in response
    return {"reward": 1.0 if right else 0.2 * any(letter.isdigit() for letter in response), "correct": right}


def cannot_read_what_is_right(response, answer, metadata):
    return float(response) if answer in response else 0.0  # a ValueError


def takes_the_answer_first(answer, response, metadata):
    return float(answer in response)


def test_graded_and_plain_verifiers_are_both_well():
    for verifier in (grades, lambda response, answer, metadata: f"<answer>{answer}</answer>" in response):
        check_verifier(verifier, right="<answer>12</answer>", wrong="<answer>13</answer>", answer="12")


@pytest.mark.parametrize(
    ("verifier", "reason"),
    [
        (raises, "must earn a reward"),
        (cannot_read_what_is_right, "'<answer>12</answer>' raised ValueError: could not convert"),
        (rewards_everything, "a wrong one 1.0"),
        (is_random, "and then"),
        (changes_metadata, "changed its metadata"),
        (gives_infinity, "found the reward -inf"),
        (says_everything_is_right, "'correct' = True, a wrong one True"),
        (takes_the_answer_first, r"found takes_the_answer_first\(answer, response, metadata\), expected verify"),
        (says_something_else, "found an object with the keys 'score', expected 'reward'"),
    ],
)
def test_it_notices(verifier, reason):
    with pytest.raises(AssertionError, match=reason):
        check_verifier(verifier, right="<answer>12</answer>", wrong="<answer>13</answer>", answer="12")
