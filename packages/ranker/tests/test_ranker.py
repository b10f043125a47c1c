"""The ranker as a whole: training, choosing, updating, and what it says when it cannot."""

import dataclasses
import math
import sys
import warnings
from typing import ClassVar

import pytest

from tailrace.contracts import PluginError
from tailrace.ranker import (
    Example,
    ExampleError,
    LengthRanker,
    Prediction,
    RankerOptionError,
    UnknownMethodError,
    ceiling20,
    compare,
    ranker,
    recall,
)
from tailrace.ranker.baselines.lexical import Lexical
from tailrace.ranker.drift import Band, Correction, correction_of, has_enough, latest, recent
from tailrace.ranker.methods import Deadline, Setting
from tailrace.ranker.recall import measure
from tailrace.ranker.splits import halves, hold_out
from tailrace.ranker.testing import made_examples
from tailrace.ranker.trials import measured, try_methods

FIGURES = {"recall20", "recall10", "recall5", "ceiling20", "tau_b", "coverage90"}


@dataclasses.dataclass(frozen=True)
class Says:
    """A method that ranks by a fixed function of the prompt; a plugin's author might write it."""

    score: float = 1.0
    needs_samples: ClassVar[bool] = False
    quick: ClassVar[bool] = True

    def fit(self, examples, setting):
        return self

    def predict(self, prompts):
        return [Prediction(1, 2, self.score * len(prompt)) for prompt in prompts]


def test_rank_is_the_order_of_the_scores():
    ranker = LengthRanker.train(made_examples(60), "prompt-length")
    prompts = ["aa", "aaaa", "a", "bbbb"]
    assert ranker.rank(prompts) == [1, 3, 0, 2]
    assert [type(one) for one in ranker.predict(prompts)] == [Prediction] * 4
    assert ranker.predict([]) == []
    assert (ranker.method, ranker.version) == ("prompt-length", 0)


def test_a_report_counts_trajectories():
    examples = made_examples(80, 4)
    ranker = LengthRanker.train(examples, "prompt-length")
    report = ranker.report(examples)
    assert set(report) == FIGURES
    predictions = ranker.predict([example.prompt for example in examples])
    scores = [one.score for one, example in zip(predictions, examples, strict=True) for _ in example.lengths]
    lengths = [length for example in examples for length in example.lengths]
    assert report["recall10"] == pytest.approx(recall(scores, lengths, 0.1))
    covered = [
        length <= one.p90 for one, example in zip(predictions, examples, strict=True) for length in example.lengths
    ]
    assert report["coverage90"] == pytest.approx(sum(covered) / len(covered))


def test_the_ceiling_is_what_a_prompts_own_samples_say():
    constant = [Example(f"{size}", (size,) * 4) for size in range(1, 41)]
    assert ceiling20(constant) == 1.0
    noise = made_examples(300, 8, seed=2)
    shuffled = [length for example in noise for length in example.lengths]
    __import__("random").Random(0).shuffle(shuffled)
    blind = [
        dataclasses.replace(one, lengths=tuple(shuffled[8 * at : 8 * at + 8]), truncated=())
        for at, one in enumerate(noise)
    ]
    assert ceiling20(blind) == pytest.approx(0.2, abs=0.07)
    assert 0.5 < ceiling20(noise) < 0.95
    assert ceiling20([Example("a", (1,)), Example("b", (2,))]) is None


def test_auto_takes_the_best_that_needs_no_samples():
    examples = made_examples(120, seed=4)
    methods = {"short": Says(-1.0), "long": Says(1.0), "same": Says(0.0)}
    learn, held = hold_out(examples, 0.2, 0)
    trials = try_methods(methods, learn, held, Setting(0, Deadline(100.0)))  # type: ignore[arg-type]
    figures = {
        name: measure(method.predict([e.prompt for e in held]), held)["recall20"] for name, method in methods.items()
    }
    assert trials.best().name == max(methods, key=lambda name: figures[name])
    assert {trial.name: trial.held_back["recall20"] for trial in trials.tried} == pytest.approx(figures)


def test_of_equal_ones_the_simplest_is_taken():
    flat = [Example(f"{at}", (5, 5)) for at in range(20)]
    learn, held = hold_out(flat, 0.2, 0)
    trials = try_methods({"first": Says(0.0), "second": Says(0.0)}, learn, held, Setting(0, Deadline(100.0)))  # type: ignore[dict-item]
    assert trials.best().name == "first"


def test_auto_keeps_its_budget_and_says_what_was_left_out():
    now = [0.0]

    class Slow(Says):
        quick: ClassVar[bool] = False

        def fit(self, examples, setting):
            given.append(setting.deadline.left_s)
            now[0] += setting.deadline.left_s
            return self

    given = []
    examples = made_examples(30)
    setting = Setting(0, Deadline(100.0, lambda: now[0]))
    trials = try_methods({"a": Slow(), "quick": Says(), "b": Slow(), "c": Slow()}, examples, examples, setting)  # type: ignore[dict-item]
    assert [trial.name for trial in trials.tried] == ["a", "quick", "b", "c"]
    assert now[0] <= 100
    assert given[0] == pytest.approx(0.85 * 100 / 3)
    now[0] = 101
    trials = try_methods({"a": Says(), "b": Says()}, examples, examples, setting)  # type: ignore[dict-item]
    assert [trial.name for trial in trials.tried] == ["a"]
    assert trials.left_out == {"b": "no time was left of the budget"}


def test_auto_names_the_methods_whose_library_is_not_installed(monkeypatch):
    """Some methods do not load, others find it out as they fit."""
    known = {"says": Says(), "lexical": Lexical()}
    monkeypatch.setattr(ranker, "installed_methods", lambda *, with_samples: (known, {"mine": "install mine"}))
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.delitem(
        sys.modules, "tailrace.ranker.baselines.boosting", raising=False
    )  # another test may have loaded it
    with pytest.warns(UserWarning, match=r"auto did not try mine, lexical: install mine; .*tailrace-ranker\[lexical\]"):
        found = LengthRanker.train(made_examples(30), budget_s=100.0)
    assert isinstance(found._method, Says)
    monkeypatch.undo()
    monkeypatch.setattr(ranker, "installed_methods", lambda *, with_samples: (known, {}))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="auto did not try")
        LengthRanker.train(made_examples(30), budget_s=100.0)


def test_a_method_that_lacks_its_model_is_left_out_and_named():
    examples = made_examples(30)
    from tailrace.ranker.learned.methods import Hidden

    trials = try_methods({"hidden": Hidden(), "says": Says()}, examples, examples, Setting(0, Deadline(100.0)))  # type: ignore[dict-item]
    assert "found no policy" in trials.left_out["hidden"]
    with pytest.raises(RankerOptionError, match="found no policy, expected the directory"):
        LengthRanker.train(examples, "hidden")


def test_a_method_that_learned_to_say_what_cannot_be_is_left_out_and_costs_the_others_nothing():
    class Diverged(Says):
        def predict(self, prompts):
            return [Prediction(math.nan, math.nan, math.nan) for _ in prompts]

    examples = made_examples(30)
    trials = try_methods({"diverged": Diverged(), "says": Says()}, examples, examples, Setting(0, Deadline(100.0)))  # type: ignore[dict-item]
    assert trials.best().name == "says"
    assert "found p50 nan" in trials.left_out["diverged"]


def test_the_same_seed_gives_the_same_ranker():
    examples, prompts = made_examples(60), [example.prompt for example in made_examples(20, seed=1)]
    first, again = (LengthRanker.train(examples, Lexical(trees=20), seed=5) for _ in range(2))
    assert first.predict(prompts) == again.predict(prompts)


def test_an_update_learns_and_counts():
    old = made_examples(120, seed=1)
    newer = [
        dataclasses.replace(one, lengths=tuple(3 * length for length in one.lengths), version=9)
        for one in made_examples(60, seed=2)
    ]
    ranker = LengthRanker.train(old, "prompt-length")
    prompts = [one.prompt for one in newer]
    before = ranker.predict(prompts)
    update = ranker.update(newer)
    assert (update.version, ranker.version) == (1, 1)
    assert update.drifted, "lengths are three times as long: coverage falls"
    assert update.recall_after >= update.recall_before
    assert sum(one.p50 for one in ranker.predict(prompts)) > 1.2 * sum(one.p50 for one in before)
    assert ranker.update(newer).version == 2


def test_the_same_kind_of_examples_is_no_drift():
    ranker = LengthRanker.train(made_examples(200, seed=1), Lexical(trees=40))
    drifted = [ranker.update(made_examples(60, seed=seed)).drifted for seed in range(2, 6)]
    assert sum(drifted) <= 1


def test_an_update_that_finds_fewer_is_not_kept():
    class Worsens(Says):
        def update(self, examples, setting):
            return Worsens(-self.score)

    examples = [Example("a" * size, (size,)) for size in range(1, 60)]
    ranker = LengthRanker.train(examples, Worsens())  # type: ignore[arg-type]
    update = ranker.update(examples)
    assert update.recall_after == update.recall_before == 1.0
    assert (update.kept, ranker.version) == (False, 1)
    assert ranker.rank(["a", "aaa"]) == [1, 0]


class Blurs(Says):
    """Predicts the number that a prompt is, of which an update blurs every second one."""

    blurred: ClassVar[bool] = False

    def predict(self, prompts):
        return [
            Prediction(at + 2, 1.2 * at + 4, float(at % 7 if self.blurred and at % 2 else at))
            for at in map(int, prompts)
        ]

    def update(self, examples, setting):
        return type("Other", (type(self),), {"blurred": not self.blurred})()


class Sharpens(Blurs):
    blurred: ClassVar[bool] = True


def numbered(prompts, version=0, factor=1):
    """Prompts that are numbers, with lengths nearly as large."""
    return [Example(f"{at}", (factor * (at + 1), factor * (at + 3)), version=version) for at in prompts]


def _windows(factor=1):
    """Prompts that come anew, 20 at a time: of each window some are the longest."""
    return [numbered(range(at, 200, 10), at, factor) for at in range(10)]


def test_an_update_that_looked_as_good_is_given_up_once_what_finishes_says_that_it_finds_fewer():
    ranker = LengthRanker.train(numbered(range(0, 200, 7)), Blurs())  # type: ignore[arg-type]
    update = ranker.update(numbered(range(5), 1, factor=50))  # one prompt is held back, and coverage has left its band
    assert (update.drifted, update.kept) == (True, True)
    told = [ranker.reconsider(window) for window in _windows()]
    assert sum(told) == 1, "once decided it stays"
    assert told.index(True) < 5
    assert ranker.rank(["3", "150", "199"]) == [2, 1, 0]
    assert ranker.reconsider(numbered(range(200, 240))) is False, "it is decided"
    assert ranker._rivals is None


def test_an_update_that_was_not_kept_is_taken_once_what_finishes_says_that_it_finds_more():
    ranker = LengthRanker.train(numbered(range(0, 200, 7)), Sharpens())  # type: ignore[arg-type]
    update = ranker.update(numbered(range(0, 50, 7), 1))
    assert (update.drifted, update.kept) == (False, False)
    assert ranker.rank(["3", "150", "199"]) == [1, 0, 2]
    assert sum(ranker.reconsider(window) for window in _windows()) == 1
    assert ranker.rank(["3", "150", "199"]) == [2, 1, 0]
    found = [one for window in _windows() for one in window]
    assert 0.8 < ranker.report(found)["coverage90"] <= 1.0, "its lengths were corrected by what it was judged by"


def test_equally_good_ones_are_not_changed_for_each_other():
    class Same(Says):
        def update(self, examples, setting):
            return Same(2 * self.score)

    ranker = LengthRanker.train(made_examples(40), Same())  # type: ignore[arg-type]
    assert not ranker.reconsider(made_examples(5)), "there was no update"
    ranker.update(made_examples(40, seed=2))
    before = ranker._predictor
    assert not any(ranker.reconsider(made_examples(30, seed=seed)) for seed in range(3, 12))
    assert ranker._predictor is before
    with pytest.raises(ExampleError, match="found no examples"):
        ranker.reconsider([])


@pytest.mark.parametrize("count", [1, 2, 4])
def test_few_prompts_are_enough_for_a_method_that_is_named(count):
    ranker = LengthRanker.train(made_examples(count), "lexical")
    assert ranker.update(made_examples(1, seed=3)).version == 1
    assert math.isfinite(ranker.predict(["Sum up: 1 + 2"])[0].score)


def test_the_recent_are_the_new_and_what_fills_them_up():
    older = [Example(f"old {at}", (1,)) for at in range(600)]
    new = [Example("new", (2,)), Example("old 599", (3,), version=1)]
    window = recent(new, older)
    assert window[-2:] == tuple(new)
    assert len(window) == 500
    assert window[0].prompt == "old 101"
    assert Example("old 599", (1,)) not in window
    assert latest(older, 3) == tuple(older[-3:])
    assert recent([Example(f"{at}", (1,)) for at in range(700)], older) == tuple(
        Example(f"{at}", (1,)) for at in range(700)
    )


def test_a_prompt_is_never_on_both_sides():
    examples = [*made_examples(30), *made_examples(30, version=1)]
    rest, held = hold_out(examples, 0.2, 7)
    assert len({one.prompt for one in held}) == 6
    assert not {one.prompt for one in rest} & {one.prompt for one in held}
    assert len(rest) + len(held) == 60


def test_halves_know_what_is_older():
    examples = [Example("a", (1, 2), version=5), Example("a", (3, 4), version=2), Example("b", (9,))]
    (known, asked), (again, _) = halves(examples, 0)
    assert sorted(length for one in known for length in one.lengths) == [3, 4]
    assert sorted(length for one in asked for length in one.lengths) == [1, 2]
    assert again == asked


def test_the_band():
    band = Band(0.8, 0.9, 100)
    assert not band.left_by(0.75, 0.9, 100)
    assert band.left_by(0.4, 0.9, 100)
    assert band.left_by(0.8, 0.7, 100)
    assert band.left_by(0.8, 1.0, 1000)
    assert not band.left_by(0.0, 0.9, 1), "one prompt says nothing"
    assert not Band(0.8, 0.75, 100).left_by(0.8, 0.74, 100), "coverage that was bad has not drifted"


def test_an_order_that_is_lost_is_noticed_though_few_prompts_were_held_back(monkeypatch):
    examples = made_examples(32)
    found = LengthRanker.train(examples, "prompt-length", seed=0)
    found._band = Band(0.9, 0.9, 7)
    before, lost = examples[:16], examples[16:]
    figures = {before[0]: (0.9, 0.9, 32), lost[0]: (0.1, 0.9, 32)}
    monkeypatch.setattr(found, "_figures", lambda which: figures[which[0]])
    assert not found.drifted(lost), "by seven prompts that is chance"
    for _ in range(9):
        assert not found.watch(before)
    assert 200 <= found._band.prompts < 232
    assert found.drifted(lost)
    assert found.watch(lost)
    assert (round(found._band.recall20, 6), found._band.prompts < 232) == (0.9, True), (
        "what has drifted narrows nothing"
    )
    monkeypatch.undo()
    assert found.watch(examples) == found.drifted(examples)


@pytest.mark.deep
def test_a_comparison_measures_all_on_prompts_held_out(small_model):
    from tailrace.ranker import comparison
    from tailrace.ranker.trials import installed_methods

    examples = made_examples(60)
    quick = {name: each for name, each in installed_methods(with_samples=True)[0].items() if each.quick}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "installed_methods", lambda *, with_samples: (quick, {"sft": "no torch"}))
        found = compare(examples, budget_s=60)
        assert compare(examples, method="random").ranker.method == "random"
    assert found.held_out == 6
    assert set(found.as_json()) == {
        "chosen", "objective", "held_out", "ceiling20", "ceiling10", "ceiling5", "methods",
    }  # fmt: skip
    assert list(found.methods) == ["random", "prompt-length", "family-mean", "last-length", "siblings", "lexical"]
    for row in found.methods.values():
        assert set(row) == {"recall20", "recall10", "recall5", "tau_b", "train_s"}
    assert found.ranker.method in ("random", "prompt-length", "family-mean", "lexical")
    assert found.left_out == {"sft": "no torch"}
    _, held = hold_out(examples, 0.1, 0)
    report = found.ranker.report(held)
    assert report["recall20"] == pytest.approx(found.methods[found.ranker.method]["recall20"])
    assert report["ceiling20"] == pytest.approx(found.ceilings["ceiling20"])


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (
            {"method": "lexcal"},
            UnknownMethodError,
            "found the method 'lexcal', expected one of auto, .*did you mean 'lexical'",
        ),
        ({"budget_s": 0}, RankerOptionError, "found budget_s = 0, expected seconds above 0"),
        ({"budget_s": math.nan}, RankerOptionError, "found budget_s = nan"),
        ({"method": "auto", "examples": 4}, ExampleError, "found 4 different prompts, expected at least 5"),
    ],
)
def test_what_cannot_be_trained_is_one_line(arguments, error, said):
    arguments = {"method": "random", **arguments}
    with pytest.raises(error, match=said) as caught:
        LengthRanker.train(made_examples(arguments.pop("examples", 20)), **arguments)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_compared_or_predicted_is_one_line():
    with pytest.raises(
        ExampleError, match=r"found 5 different prompts, of which 4 are left .* expected at least 5 left"
    ):
        compare(made_examples(5))
    same = [Example(f"{at}", (7, 7)) for at in range(20)]
    with pytest.raises(ExampleError, match="found 40 responses, all of 7 tokens, expected lengths that differ"):
        compare(same)
    cut = [Example(f"{at}", (7, at + 1), (True, True)) for at in range(20)]
    with pytest.raises(ExampleError, match="found 40 responses, all truncated, expected some that ended"):
        compare(cut)
    with pytest.raises(ExampleError, match="found 1 family of prompts, expected at least two"):
        compare([dataclasses.replace(one, family="") for one in made_examples(20)], by_family=True)
    with pytest.raises(ExampleError, match="prompts to transfer to, all learned from"):
        compare(made_examples(40), transfer=_learned_from(made_examples(40)), names=["random"])
    with pytest.raises(RankerOptionError, match="found the split 7:0:1, expected parts of at least 1"):
        compare(made_examples(20), split=(7, 0, 1))
    with pytest.raises(RankerOptionError, match="found the option 'trees', expected a method by name"):
        compare(made_examples(20), options={"trees": 5})
    with pytest.raises(
        RankerOptionError, match=r"found the option 'tree' of the method 'lexical', .*did you mean 'trees'"
    ):
        compare(made_examples(20), method="lexical", options={"tree": 5})
    with pytest.raises(RankerOptionError, match="found trees = 'many' of the method 'lexical', expected int"):
        compare(made_examples(20), method="lexical", options={"trees": "many"})
    ranker = LengthRanker.train(made_examples(20), "random")
    for prompts in ("a text", [b"bytes"], [None]):
        with pytest.raises(ExampleError, match="expected a list of texts"):
            ranker.predict(prompts)  # type: ignore[arg-type]
    with pytest.raises(ExampleError, match="found no examples"):
        ranker.update([])


def _learned_from(examples):
    return hold_out(examples, 0.1, 0)[0]


def test_families_are_held_out_whole_and_other_data_is_measured_beside():
    examples = made_examples(80)
    other = [dataclasses.replace(one, lengths=tuple(5 * each for each in one.lengths)) for one in made_examples(90)]
    found = compare(examples, names=["prompt-length"], method="random", by_family=True, transfer=other)
    families = {name: sum(one.family == name for one in examples) for name in ("sums", "words")}
    assert found.held_out in families.values()
    assert list(found.methods) == ["random", "prompt-length"]
    # The first 80 prompts of both are the same ones: those that were learned from are no test of anything.
    (learned_family,) = {name for name, count in families.items() if count == 80 - found.held_out}
    unseen = [one for at, one in enumerate(other) if at >= 80 or one.family != learned_family]
    predictions = found.ranker._method.fit(examples, Setting(0, Deadline(9.0))).predict([one.prompt for one in unseen])
    assert found.methods["random"]["transfer_recall20"] == pytest.approx(measure(predictions, unseen)["recall20"])
    assert found.ceilings["transfer_ceiling20"] == pytest.approx(ceiling20(unseen))


def test_a_plugin_that_is_no_method_is_named(monkeypatch):
    from tailrace.ranker import methods

    monkeypatch.setattr(methods, "load", lambda group, name: dict)
    with pytest.raises(
        PluginError, match=r"plugin 'random' of group tailrace\.predictor gives dict, expected a Method"
    ):
        methods.load_method("random")


def test_quantiles_follow_the_policy_even_if_the_order_is_kept():
    examples = [Example("a" * size, (10 * size,) * 8) for size in range(1, 80)]
    ranker = LengthRanker.train(examples, "prompt-length")
    longer = [
        dataclasses.replace(one, lengths=tuple(4 * length for length in one.lengths), version=1) for one in examples
    ]
    assert ranker.update(longer[::2]).drifted
    report = ranker.report(longer)
    assert 0.8 < report["coverage90"] < 0.98
    assert ranker.predict(["a" * 40])[0].p50 == pytest.approx(1600, rel=0.2)
    assert ranker.rank(["a", "aaa"]) == [1, 0]


def test_a_correction_by_hand():
    predictions = [Prediction(10, 20, 5 + 10 * (at % 2)) for at in range(30)]
    examples = [Example(f"{at}", (20, 20, 20, 60)) for at in range(30)]
    correction = correction_of(predictions, examples)
    assert (correction.p50, correction.p90, correction.score) == (2.0, 3.0, 3.0)
    assert correction(Prediction(5, 30, 7)) == Prediction(10, 90, 21)
    below = [Prediction(10, 20, -1.0)] * 30
    assert correction_of(below, examples).score == 1.0, "the order stays"
    assert [has_enough(examples[:count]) for count in (12, 13)] == [False, True]
    assert Correction(0.01, 0.01)(Prediction(5, 30, 7)) == Prediction(1, 1, 7)
    assert Correction(2.0, 2.0)(Prediction(5, 30, 7)) == Prediction(10, 60, 7)


def test_measuring_ends_in_time_with_a_random_part():
    now = [0.0]

    class Slow(Says):
        def predict(self, prompts):
            now[0] += len(prompts)
            return super().predict(prompts)

    examples = [Example("a" * size, (size,)) for size in range(1, 2001)]
    figures = measured(Slow(), examples, Deadline(900.0, lambda: now[0]))  # type: ignore[arg-type]
    assert now[0] == 3 * 256
    assert figures["recall20"] == 1.0
    assert measured(Slow(), examples[:1], Deadline(1e-6, lambda: now[0]))["recall20"] == 1.0  # type: ignore[arg-type]
