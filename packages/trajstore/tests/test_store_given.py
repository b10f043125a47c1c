"""A stack of one's own hands the store arrays and numbers of numpy and torch: it keeps them as numbers, or refuses."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from tailrace.contracts import FinishReason, PartialDelta
from tailrace.trajstore import Assignment, TrajectoryStore
from tailrace.trajstore.errors import StoreFormatError, TrajectoryDataError

whole: Any = np.int64
single: Any = np.float32
anything: Any = Assignment, PartialDelta, "float16"
WrongAssignment, WrongDelta, UNKNOWN = anything
KINDS = pytest.mark.parametrize("array", [np.array, torch.tensor, list], ids=["numpy", "torch", "list"])


@KINDS
def test_arrays_come_back_as_numbers_also_from_the_file(tmp_path, array):
    with TrajectoryStore(tmp_path / "run.db") as store:
        version, group = whole(3), whole(4)
        (resume,) = store.begin("r#1", version, [Assignment("0.0", group, prompt_tokens=array([5, 6]))])
        assert resume.prompt_tokens == (5, 6)
        first = PartialDelta("0.0", 0, version, tokens=array([7, 8]), logprobs=array([-0.5, -0.25]))
        last = PartialDelta("0.0", 2, version, array([9, 10]), array([-1.5, -2.5]), FinishReason.STOP)
        assert store.append("r#1", [first, last, last], trainer_version=whole(3)) == []
        assert store.append("r#1", [first]) == [], "told again"
        assert store.append("r#1", [replace(last, offset=whole(2))]) == [], "told again"
        store.set_reward("0.0", single(0.5))
    with TrajectoryStore(tmp_path / "run.db") as store:
        (found,) = store.experiences(["0.0"])
        assert (found.group, found.prompt, found.tokens, found.reward) == (4, (5, 6), (7, 8, 9, 10), 0.5)
        assert [(one.version, one.logprobs) for one in found.segments] == [(3, (-0.5, -0.25, -1.5, -2.5))]
        assert [store.outlines(["0.0"])[0].reward, store.trainable()[0].group] == [0.5, 4]
        store.set_rewards({"0.0": torch.tensor(0.75)})
        store.consume(["0.0"], whole(4))
        assert (store.trainer_version, store.experiences(["0.0"])[0].reward) == (4, 0.75)
        assert store.rollback(whole(3)) == ["0.0"]


def test_an_observation_is_an_array_and_its_reward_a_number_of_numpy(tmp_path):
    with TrajectoryStore(tmp_path / "run.db") as store:
        store.begin("r#1", 3, [Assignment("0.0", 0, (5,))])
        store.append("r#1", [PartialDelta("0.0", 0, 3, (7,), (-0.5,), turn_ends=True)])
        (talk,) = store.conversations(["0.0"])
        turn = store.observe("0.0", whole(talk.turns[-1].serial), np.array([30, 31]), reward=single(0.5))
        assert turn is not None
        assert turn.reward == 0.5
        assert store.partials()[0].tokens == 3
        store.append("r#1", [PartialDelta("0.0", 3, 3, (8,), (-0.5,), turn_ends=True)])
        store.observe("0.0", turn.serial + 1, (), done=True, trainer_version=whole(5))
        assert store.experiences(["0.0"])[0].completed_version == 5


def test_bytes_are_numbers_of_tokens_too(tmp_path):
    """A tokenizer of bytes gives them: four were read as one token, and another number was an error of the library's."""
    with TrajectoryStore(tmp_path / "run.db") as store:
        given: Any = b"hello", b"abcd"
        (resume,) = store.begin("r#1", 3, [Assignment("0.0", 0, given[0])])
        assert resume.prompt_tokens == tuple(b"hello")
        store.append("r#1", [PartialDelta("0.0", 0, 3, given[1], (-0.5,) * 4, turn_ends=True)])
        (talk,) = store.conversations(["0.0"])
        store.observe("0.0", talk.turns[-1].serial, given[1], done=True)
        assert store.experiences(["0.0"])[0].tokens == tuple(b"abcdabcd")
        assert store.audit()["inconsistent"] == []


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda store: store.begin("r#1", "3", []), "found version '3', expected a whole number"),
        (lambda store: store.begin("r#1", 3.5, []), "found version 3.5, expected a whole number"),
        (lambda store: store.begin(None, 3, []), "found owner None, expected text"),
        (lambda store: store.begin("r#1", 3, [WrongAssignment(7, 0, (1,))]), "found trajectory 7, expected text"),
        (lambda store: store.begin("r#1", 3, [Assignment("\ud800", 0, (1,))]), "expected text that UTF-8 can hold"),
        (lambda store: store.begin("r#1", 3, [WrongAssignment("a", "abc", (1,))]), "found group of trajectory a 'abc'"),
        (lambda store: store.begin("r#1", 3, [Assignment("a", 2**70, (1,))]), "expected a whole number of at most 64"),
        (lambda store: store.append("r#1", [WrongDelta("0.0", 0, "3", (1,), (-1.0,))]), "found version '3'"),
        (lambda store: store.append("r#1", [WrongDelta("0.0", 0.5, 3, (1,), (-1.0,))]), "found offset 0.5"),
        (lambda store: store.append("r#1", [WrongDelta("\ud800", 0, 3, (1,), (-1.0,))]), "text that UTF-8 can hold"),
        (lambda store: store.statuses(["\ud800"]), r"found '\\ud800', expected text that UTF-8 can hold"),
        (lambda store: store.discard(["0.0"], "\ud800"), "expected text that UTF-8 can hold"),
        (lambda store: store.set_reward("0.0", "1"), "found reward '1', expected a finite number"),
        (lambda store: store.set_rewards({"0.0": None}), "found reward None, expected a finite number"),
        (lambda store: store.set_reward("0.0", np.array([1.0, 2.0])), "expected a finite number"),
        (lambda store: store.consume([], "x"), "found version 'x', expected a whole number"),
        (lambda store: store.rollback("x"), "found durable version 'x', expected a whole number"),
        (lambda store: store.trim(math.inf), "found durable version inf, expected a whole number"),
    ],
)
def test_what_cannot_be_kept_is_one_line_and_the_file_opens_again(tmp_path, call, expected):
    with TrajectoryStore(tmp_path / "run.db") as store:
        store.begin("r#1", 3, [Assignment("0.0", 0, (5,))])
        with pytest.raises(TrajectoryDataError, match=expected) as caught:
            call(store)
        assert "\n" not in str(caught.value)
    with TrajectoryStore(tmp_path / "run.db") as store:
        assert store.trainer_version == 0


@pytest.mark.parametrize("path", ["", "."])
def test_a_folder_is_no_store(tmp_path, monkeypatch, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreFormatError, match="found a folder, expected the path of a file"):
        TrajectoryStore(path)


def test_an_unknown_precision_is_refused():
    with pytest.raises(StoreFormatError, match="found logprobs='float16', expected 'float32' or 'float64'"):
        TrajectoryStore(None, logprobs=UNKNOWN)
