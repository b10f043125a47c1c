"""Verifiers by reference: a file or a module, without a package."""

import pytest

from tailrace.reward import ScoreItem, Scorer, ScoringFailure
from tailrace.reward.errors import UnknownVerifierError
from tailrace.reward.testing import check_verifier
from tailrace.reward.verifiers import is_reference, load_reference

SOURCE = """
def verify(response, answer, metadata):
    return 1.0 if answer in response else min(0.5, len(response) / 100)
"""


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "my_task.py"
    path.write_text(SOURCE)
    return path


def test_a_function_of_a_file(source):
    reference = f"{source}:verify"
    assert is_reference(reference)
    assert not is_reference("math")
    check_verifier(load_reference(reference), right="it is 12", wrong="", answer="12")
    with Scorer({"mine": reference}) as scorer:
        (right, wrong) = scorer.score([ScoreItem("a", "it is 12", "12", "mine"), ScoreItem("b", "no", "12", "mine")])
    assert (right.reward, wrong.reward) == (1.0, 0.02)


def test_a_function_of_a_module():
    assert load_reference("tailrace.reward.verifiers.exact:exact")("<answer>a</answer>", "a", {}) == 1.0


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("{}:judge", "found no function 'judge' in"),
        ("nowhere.py:verify", "found no file nowhere.py"),
        ("{}:SOURCE", "found no function 'SOURCE'"),
    ],
)
def test_what_is_not_there(source, reference, says):
    with pytest.raises(UnknownVerifierError, match=says):
        load_reference(reference.format(source))


def test_a_file_that_does_not_import_is_a_failure_and_no_reward(tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_this_name")
    with Scorer({"mine": f"{tmp_path / 'broken.py'}:verify"}) as scorer:
        (outcome,) = scorer.score([ScoreItem("a", "", "", "mine")])
    assert isinstance(outcome, ScoringFailure)
    assert "nothing_of_this_name" in outcome.reason
