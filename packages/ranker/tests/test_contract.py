"""The built-in methods keep the contract, and the contract notices those that do not."""

import dataclasses
import itertools
from typing import Any, ClassVar

import pytest

from tailrace.ranker import method_names
from tailrace.ranker.baselines.lexical import Lexical
from tailrace.ranker.baselines.tables import PromptLength
from tailrace.ranker.learned.methods import Encoder, Hidden, Sft
from tailrace.ranker.learned.options import OBJECTIVES
from tailrace.ranker.methods import Method, load_method
from tailrace.ranker.testing import check_method, made_examples

SMALL: dict[str, Any] = {
    "layers": 1,
    "heads": 2,
    "mlp": 64,
    "vocabulary": 300,
    "epochs": 2,
    "batch": 16,
    "most_tokens": 64,
}
QUICK: dict[str, Any] = {
    "lexical": Lexical(trees=10),
    "encoder": Encoder(width=32, **SMALL),
    "sft": Sft(width=32, **SMALL),
    "hidden": Hidden(width=16, epochs=2),
}


@pytest.mark.parametrize("name", method_names())
def test_built_ins_keep_it(name, small_model):
    default = load_method(name)
    assert isinstance(default, Method)
    method = QUICK.get(name, default)
    assert type(method) is type(default)
    check_method(method, policy=small_model)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", method_names())
def test_built_ins_keep_it_on_other_examples(name, seed, small_model):
    check_method(QUICK.get(name, load_method(name)), policy=small_model, prompts=90, seed=seed)


GIVEN: dict[str, Any] = {"epochs": 2, "batch": 16, "most_tokens": 64, "lora_rank": 2, "init_lr": 1e-3}


@pytest.mark.parametrize(
    "objective", [OBJECTIVES[0], *(pytest.param(each, marks=pytest.mark.deep) for each in OBJECTIVES[1:])]
)
def test_those_that_fine_tune_a_model_keep_it(objective, small_model):
    check_method(Sft(objective=objective, **GIVEN), init=small_model)


@pytest.mark.deep
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_those_that_fine_tune_all_weights_keep_it(objective, small_model):
    check_method(Sft(objective=objective, **GIVEN | {"lora_rank": 0}), init=small_model)


class Changed:
    """A predictor of which one thing is wrong."""

    def __init__(self, inner, wrong):
        self._inner, self._wrong, self._count = inner, wrong, itertools.count()

    def predict(self, prompts):
        found = self._inner.predict(prompts)
        if self._wrong == "one too few":
            return found[:-1]
        if self._wrong == "changes its mind":
            return [dataclasses.replace(one, score=one.score + next(self._count)) for one in found]
        if self._wrong == "looks at the others":
            return [dataclasses.replace(one, score=one.score / max(len(prompts), 1)) for one in found]
        if self._wrong == "looks at the order":
            return [dataclasses.replace(one, score=one.score + at) for at, one in enumerate(found)]
        if self._wrong == "no prediction":
            return [one.score for one in found]
        if self._wrong == "raises" and "" in prompts:
            raise IndexError("an empty prompt")
        return found

    def update(self, examples, setting):
        if self._wrong == "updates itself":
            self._inner = self._inner.update(examples, setting)
            return self
        if self._wrong == "updates itself, too":
            self._inner = self._inner.update(examples, setting)
        return Changed(self._inner.update(examples, setting), self._wrong)

    def files(self):
        files = self._inner.files()
        return files | {"more.pkl": b""} if self._wrong == "pickles" else files


@dataclasses.dataclass(frozen=True)
class Wrong:
    wrong: str
    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = True

    def fit(self, examples, setting):
        if self.wrong == "changes an example":
            object.__setattr__(examples[0], "family", "other")
        return Changed(PromptLength().fit(examples, setting), self.wrong)

    def restore(self, files, setting):
        if self.wrong == "restores another":
            return PromptLength().fit(made_examples(1), setting)
        return Changed(PromptLength().restore(files, setting), "")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("one too few", "got 8 predictions"),
        ("changes its mind", "other predictions the second time"),
        ("looks at the others", "depends on the prompts beside it"),
        ("looks at the order", "depends on the order"),
        ("no prediction", "found float, expected a Prediction"),
        ("raises", "the prompt '' raised IndexError"),
        ("updates itself", "gave the same object"),
        ("updates itself, too", "changed the old predictor"),
        ("pickles", "more.pkl"),
        ("changes an example", "an example was changed"),
        ("restores another", "predicts something else"),
    ],
)
def test_it_notices(wrong, said):
    with pytest.raises(AssertionError, match=said):
        check_method(Wrong(wrong))
