"""The ranker as an executor calls it, with real rankers that learn in moments, and a data role that says what finished."""

import errno
import json
import math
import random
import shutil
import threading

import pytest

from tailrace.contracts import Activity, Predict, Predicted, PredictionFailed
from tailrace.pipeline.roles.calls import FinishedLength, FinishedLengths
from tailrace.pipeline.roles.ranker import RankerRole, RankerSettings, saved_rankers
from tailrace.ranker import (
    Example,
    LengthRanker,
    Prediction,
    PredictionError,
    RankerOptionError,
    Sft,
    UnknownMethodError,
    read_note,
)
from tailrace.ranker.drift import WINDOW_PROMPTS
from tailrace.ranker.saved import _checksum, to_json
from tailrace.ranker.testing import language_model
from tailrace.runtime.errors import RoleError
from tailrace.runtime.executor.seam import MemberDeadError, MemberStart

PROMPTS, SAMPLES = 20, 4


class Data:
    """What the ranker needs of the data role: prompt `n` is `n + 1` words long, and `finished` what has finished."""

    def __init__(self):
        self.lengths, self.truncated = FinishedLengths(), ()

    def prompt_texts(self, prompts):
        return [text(prompt) for prompt in prompts]

    def finished_lengths(self, after):
        return self.lengths.since(after)

    def finish(self, tokens_of, prompts=range(PROMPTS), version=0, samples=range(SAMPLES)):
        for prompt in prompts:
            for sample in samples:
                tokens, name = tokens_of(prompt) + sample, f"{version}.{prompt}.{sample}"
                self.lengths.note(name, text(prompt), tokens, version, truncated=sample in self.truncated)


def text(prompt):
    return " ".join(["word"] * (prompt + 1))


@pytest.fixture
def data():
    return Data()


@pytest.fixture
def make(caller, data, tmp_path):
    roles = []
    caller.role = data

    def start(data_s=180.0, **options):
        given = {
            "saved": tmp_path / "saved",
            "path": None,
            "method": "prompt-length",
            "prompts": PROMPTS,
            "samples": SAMPLES,
            "look_s": 0.02,
            "budget_s": 30.0,
        }
        roles.append(RankerRole(RankerSettings(**{**given, **options}), MemberStart(store=caller, data_s=data_s)))
        return roles[-1]

    yield start
    for role in roles:
        role.close()


def asks(role, gather, prompts=range(PROMPTS), seq=1):
    """The answers to one question, by prompt, and what else was said."""
    role.submit([Predict(seq, tuple(prompts))])
    events = gather(role, lambda events: len(answers(events)) >= len(prompts), "answers")
    return answers(events), [event for event in events if isinstance(event, Activity)]


def answers(events):
    return {event.prompt: event for event in events if isinstance(event, Predicted | PredictionFailed)}


def learns(role, gather, what):
    gather(role, lambda events: what in [event.phase for event in events if isinstance(event, Activity)], what)


def trained(lengths_of=lambda prompt: 10 * (prompt + 1)):
    examples = [Example(text(n), tuple(lengths_of(n) + sample for sample in range(4))) for n in range(40)]
    return LengthRanker.train(examples, method="prompt-length", seed=0)


def test_it_begins_with_a_ranker_that_was_saved(make, gather, tmp_path):
    ranker = trained()
    ranker.save(tmp_path / "given")
    found, _ = asks(make(path=tmp_path / "given"), gather, prompts=[3, 30, 17], seq=7)
    expected = ranker.predict([text(3), text(30), text(17)])
    assert list(found.values()) == [
        Predicted(prompt, each.p50, 7, each.p90, each.score) for prompt, each in zip([3, 30, 17], expected, strict=True)
    ]


def test_without_one_it_has_no_length_until_enough_has_finished_and_then_it_learns_unasked(make, data, gather, until):
    role = make()
    data.finish(lambda prompt: 10 * (prompt + 1), prompts=range(PROMPTS - 1))
    until(lambda: role._known == PROMPTS - 1, "what has finished")
    found, _ = asks(role, gather)
    assert {event.reason for event in found.values()} == {
        f"found finished responses to {PROMPTS - 1} prompts, expected {PROMPTS} to learn from"
    }
    data.finish(lambda prompt: 10 * (prompt + 1), prompts=[PROMPTS - 1])
    learns(role, gather, "trained")
    found, _ = asks(role, gather, prompts=[0, PROMPTS - 1], seq=3)
    assert found[0].tokens < found[PROMPTS - 1].tokens


def test_a_prompt_counts_once_all_its_samples_have_finished_since_the_first_to_finish_are_the_shortest(
    make, data, gather, until
):
    role = make()
    for sample in range(SAMPLES):
        assert role._ranker is None
        data.finish(lambda prompt: 10 * (prompt + 1) ** 2, samples=[sample])
        until(lambda: role._seen == PROMPTS * (sample + 1), "what has finished")  # noqa: B023 - it is called here
    learns(role, gather, "trained")
    assert [len(example.lengths) for example in role._ranker._memory] == [SAMPLES] * PROMPTS


def test_what_a_limit_ended_is_learned_as_truncated_however_short(make, data, gather):
    data.truncated = (1, 3)
    role = make()
    data.finish(lambda prompt: 10 * (prompt + 1))
    learns(role, gather, "trained")
    assert {example.truncated for example in role._ranker._memory} == {(False, True, False, True)}


def test_it_learns_anew_when_its_predictions_are_off_and_only_then(make, data, gather, until, tmp_path):
    trained().save(tmp_path / "given")
    role = make(path=tmp_path / "given")
    before, _ = asks(role, gather)
    data.finish(lambda prompt: 10 * (prompt + 1))
    until(lambda: role._seen == PROMPTS * SAMPLES and not role._new, "what has finished")
    data.finish(lambda prompt: 90 * (prompt + 1), version=1)
    learns(role, gather, "updated")
    assert role._learned == 1  # the first time all was as it was predicted
    after, _ = asks(role, gather, seq=4)
    assert after[PROMPTS - 1].tokens > 3 * before[PROMPTS - 1].tokens


def test_what_finishes_after_an_update_decides_again_which_of_both_predicts(
    make, data, gather, until, tmp_path, monkeypatch
):
    trained().save(tmp_path / "given")
    role, given, says = make(path=tmp_path / "given"), [], []

    def reconsider(ranker, examples):
        given.append([example.prompt for example in examples])
        return says[len(given) - 1]

    monkeypatch.setattr(LengthRanker, "reconsider", reconsider)
    for last, says[:] in ((0, [False]), (1, [False, True])):  # what is as it was predicted leads to no update
        data.finish(lambda prompt: 10 * (prompt + 1), version=last)
        until(lambda: len(given) > last and not role._new, "what has finished")  # noqa: B023 - it is called here
        assert sorted(given[last]) == sorted(map(text, range(PROMPTS)))
    learns(role, gather, "updated")
    assert (role._learned, role._ranker.version) == (1, 0)
    assert read_note(tmp_path / "saved" / "1").method == "prompt-length", "its successor has what predicts now"


def test_a_successor_asks_by_the_newest_prompts_and_not_by_all_of_the_run_whether_it_has_drifted(
    make, data, until, tmp_path, monkeypatch
):
    trained().save(tmp_path / "saved" / "1")
    asked, learned = [], []
    monkeypatch.setattr(LengthRanker, "watch", lambda _, examples: asked.append(len(examples)) or True)
    monkeypatch.setattr(LengthRanker, "update", lambda _, examples: learned.append(len(examples)))
    data.finish(lambda prompt: 10 * (prompt + 1), prompts=range(WINDOW_PROMPTS + 100))
    make()
    until(lambda: learned, "an update")
    assert (asked, learned) == ([PROMPTS], [WINDOW_PROMPTS])


def test_its_successor_goes_on_with_what_it_has_learned_even_if_it_died_while_it_saved(make, data, gather, tmp_path):
    role = make()
    data.finish(lambda prompt: 10 * (prompt + 1))
    learns(role, gather, "trained")
    before, _ = asks(role, gather, seq=2)
    role.close()
    (tmp_path / "saved" / "2" / "predictor").mkdir(parents=True)  # and no more
    after, _ = asks(make(), gather, seq=2)
    assert after == before
    assert all(isinstance(event, Predicted) for event in after.values())


class Slow:
    """Predicts when it is told to."""

    def __init__(self):
        self.asked, self.began, self.go = [], threading.Event(), threading.Event()

    def predict(self, texts):
        self.began.set()
        assert self.go.wait(30)
        self.asked.append(len(texts))
        return [Prediction(1.0, 2.0, 1.0) for _ in texts]


def test_a_ranker_that_is_slower_than_the_run_answers_what_was_asked_last(make, gather):
    role = make()
    role._ranker = slow = Slow()
    role.submit([Predict(1, tuple(range(40)))])
    assert slow.began.wait(30)
    role.submit([Predict(seq, (seq,)) for seq in range(2, 13)])
    late = gather(role, lambda events: len(events) == 3, "what is late")
    assert [event.answers for event in late] == [2, 3, 4], "while it still predicts"
    assert "the ranker is slower than the run" in late[0].reason
    slow.go.set()
    found = gather(role, lambda events: len(events) == 40 + 8, "all answers")
    assert slow.asked == [16] + [1] * 8, "the rest of the first question is late, too"
    assert [event.answers for event in found if isinstance(event, PredictionFailed)] == [1] * 24
    answered = [event.answers for event in found if isinstance(event, Predicted) and event.answers > 1]
    assert answered == [12, 11, 10, 9, 8, 7, 6, 5]


def test_a_large_question_is_answered_part_by_part(make, gather):
    role = make()
    role._ranker = slow = Slow()
    slow.go.set()
    found, _ = asks(role, gather, prompts=range(40))
    assert slow.asked == [16, 16, 8]
    assert list(found) == list(range(40))


def test_what_was_predicted_while_it_learned_is_predicted_anew(make, data, gather):
    role = make()
    role._ranker = slow = Slow()
    role.submit([Predict(1, tuple(range(40)))])
    assert slow.began.wait(30)
    newer = trained()
    newer.reconsider = lambda _: True
    role._ranker = newer  # `slow` goes on with what it was asked before
    data.finish(lambda prompt: 10 * (prompt + 1))
    learns(role, gather, "updated")
    slow.go.set()
    found = gather(role, lambda events: len(events) == 40, "all answers")
    expected = newer.predict([text(prompt) for prompt in range(40)])
    assert [event.tokens for event in found] == [each.p50 for each in expected]


def test_one_that_is_closed_ends_with_the_part_that_it_predicts(make, until):
    role = make()
    role._ranker = slow = Slow()
    role.submit([Predict(1, tuple(range(40)))])
    assert slow.began.wait(30)
    closing = threading.Thread(target=role.close)
    closing.start()
    until(lambda: role._worker.closing, "the end")
    slow.go.set()
    closing.join(30)
    assert slow.asked == [16]


class Wrong:
    """A ranker that raises for one prompt, and says for others what cannot be."""

    def predict(self, texts):
        if any(each == text(1) for each in texts):
            raise PredictionError("found p50 nan")
        return [_as_it_is(*SAID[each.count(" ")]) for each in texts]


SAID = {0: (5.0, 0.0), 2: (math.nan, 0.0), 3: (0.5, 0.0), 4: (math.inf, 0.0), 5: (5.0, math.nan)}
"""Quantiles and score by prompt."""


def _as_it_is(quantile, score):
    """A prediction that was never checked."""
    prediction = Prediction(1.0, 1.0, 0.0)
    for name, value in (("p50", quantile), ("p90", quantile), ("score", score)):
        object.__setattr__(prediction, name, value)
    return prediction


def test_what_cannot_be_is_refused_and_costs_the_others_nothing(make, gather):
    role = make()
    role._ranker = Wrong()
    found, _ = asks(role, gather, prompts=range(6))
    assert {prompt for prompt, event in found.items() if isinstance(event, PredictionFailed)} == {1, 2, 3, 4, 5}
    assert found[0] == Predicted(0, 5.0, 1, 5.0, 1.0), "a score below one token is one token"
    assert found[1].reason == "found p50 nan"
    assert found[5].reason == "found a score of nan, expected a finite number"
    assert found[3].reason == "found p50 0.5 and p90 0.5 tokens, expected 1 <= p50 <= p90"


def test_what_breaks_it_is_raised(make, gather):
    role = make()
    role.submit(["not a command"])
    with pytest.raises((RoleError, AttributeError)):
        gather(role, lambda _: False, "an error")


def test_nothing_is_learned_from_responses_that_are_all_alike(make, data, gather, until):
    role = make()
    role._settings.saved.mkdir(parents=True, exist_ok=True)
    data.lengths.note("first", text(0), 9, 0, truncated=False)
    for prompt in range(PROMPTS):
        for sample in range(SAMPLES):
            data.lengths.note(f"{prompt}.{sample}", text(prompt), 9, 0, truncated=False)
    until(lambda: role._seen == PROMPTS * SAMPLES + 1, "what has finished")
    found, _ = asks(role, gather)
    assert all(isinstance(event, PredictionFailed) for event in found.values())
    data.finish(lambda prompt: 10 * (prompt + 1), version=1)
    learns(role, gather, "trained")


def test_responses_that_are_all_alike_are_learned_once_later_ones_differ_from_them(make, data, gather, until):
    role = make()
    for prompts, tokens in (((*range(PROMPTS),), 9), ((*range(PROMPTS, 2 * PROMPTS),), 12)):
        assert role._ranker is None
        for prompt in prompts:
            for sample in range(SAMPLES):
                data.lengths.note(f"{prompt}.{sample}", text(prompt), tokens, 0, truncated=False)
        until(lambda: role._seen == PROMPTS * SAMPLES * (2 if tokens == 12 else 1), "a look")  # noqa: B023
    learns(role, gather, "trained")
    assert {9} < {length for example in role._ranker._memory for length in example.lengths}


@pytest.mark.parametrize("objective", ["auto", "write"])
def test_a_budget_shorter_than_a_step_costs_the_ranker_nothing_but_what_it_would_have_learned(
    objective, make, data, gather, until, tmp_path, caplog
):
    pytest.importorskip("peft")
    method = Sft(objective=objective, steps=4, batch=16, most_tokens=64, lora_rank=2, init_lr=1e-3)
    role = make(method=method, init=language_model(tmp_path / "model"), budget_s=1e-6)
    data.finish(lambda prompt: 10 * (prompt + 1))
    until(lambda: "left of the budget" in caplog.text, "a warning")
    found, _ = asks(role, gather)
    assert all(isinstance(event, PredictionFailed) for event in found.values())


@pytest.mark.parametrize("objective", ["write", "pairwise"])
def test_a_language_model_learns_is_updated_when_lengths_move_and_its_successor_goes_on(
    objective, make, data, gather, tmp_path
):
    pytest.importorskip("peft")
    given = {
        "method": Sft(objective=objective, steps=4, batch=16, most_tokens=64, lora_rank=2, init_lr=1e-3),
        "init": language_model(tmp_path / "model"),
        "budget_s": 120.0,
    }
    role = make(**given)
    data.finish(lambda prompt: 10 * (prompt + 1))
    learns(role, gather, "trained")
    before, _ = asks(role, gather, seq=2)
    data.finish(lambda prompt: 90 * (prompt + 1), version=1)
    learns(role, gather, "updated")
    after, _ = asks(role, gather, seq=3)
    assert after[PROMPTS - 1].tokens > 2 * before[PROMPTS - 1].tokens
    role.close()
    again, _ = asks(make(**given), gather, seq=3)
    assert again == after
    assert read_note(tmp_path / "saved" / "2").objective == objective


@pytest.mark.parametrize("error", [RankerOptionError("found no time"), PredictionError("found p50 nan")])
def test_an_update_that_fails_costs_what_it_would_have_learned_and_the_next_one_is_tried(
    error, make, data, gather, until, tmp_path, caplog, monkeypatch
):
    trained().save(tmp_path / "given")
    role = make(path=tmp_path / "given")
    before, _ = asks(role, gather)

    def fails(*_):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(LengthRanker, "update", fails)
        data.finish(lambda prompt: 90 * (prompt + 1))
        until(lambda: str(error) in caplog.text, "a warning")
    found, _ = asks(role, gather, seq=2)
    assert [event.tokens for event in found.values()] == [event.tokens for event in before.values()]
    data.finish(lambda prompt: 90 * (prompt + 1), version=1)
    learns(role, gather, "updated")


def test_on_a_full_disk_it_predicts_by_what_it_has_learned_and_saves_the_next_time(
    make, data, gather, until, tmp_path, caplog, monkeypatch
):
    trained().save(tmp_path / "saved" / "1")
    role = make()

    def full(ranker, directory):
        (directory / "predictor").mkdir(parents=True)
        (directory / "predictor" / "table.json.1.unfinished").write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LengthRanker, "save", full)
        data.finish(lambda prompt: 90 * (prompt + 1))
        learns(role, gather, "updated")
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["1"]
    assert "is not saved" in caplog.text
    assert "No space left on device" in caplog.text
    found, _ = asks(role, gather, seq=2)
    assert found[9].tokens > 600
    data.finish(lambda prompt: 900 * (prompt + 1), version=1)
    learns(role, gather, "updated")
    until(lambda: (tmp_path / "saved" / "2" / "ranker.json").exists(), "what was saved")


def note_of(directory, **changes):
    """Change a note, so that its checksum fits."""
    note = json.loads((directory / "ranker.json").read_text())
    del note["checksum"]
    note |= changes
    (directory / "ranker.json").write_bytes(to_json({**note, "checksum": _checksum(note)}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda at: (at / "ranker.json").write_bytes(b""), "found no JSON"),
        (lambda at: (at / "ranker.json").write_text("[" * 100_000), "found no JSON"),
        (lambda at: (at / "ranker.json").write_text((at / "ranker.json").read_text()[:-40]), "found no JSON"),
        (lambda at: note_of(at, format=99), "found format 99"),
        (lambda at: note_of(at, state=[]), "as state"),
        (lambda at: note_of(at, state={"version": 1}), "found a state that is none"),
        (lambda at: note_of(at, sha256=7), "as sha256"),
        (lambda at: note_of(at, method="somebody-elses"), "found the method 'somebody-elses'"),
        (lambda at: shutil.rmtree(at / "predictor"), "found no predictor/"),
    ],
)
def test_it_comes_up_with_the_newest_that_can_be_used_and_says_why_it_is_not_the_last(
    damage, said, make, data, gather, tmp_path
):
    saved = tmp_path / "saved"
    trained().save(saved / "1")
    trained(lambda prompt: 90 * (prompt + 1)).save(saved / "2")
    damage(saved / "2")
    (saved / "2.mine").mkdir()
    (saved / "9.txt").write_text("a note of a user")
    role = make()
    (note,) = role.ready().notes
    assert note.startswith("what the ranker has learned is not used: ")
    assert said in note
    assert "\n" not in note
    found, _ = asks(role, gather, prompts=[5])
    assert found[5].tokens == trained().predict([text(5)])[0].p50
    data.finish(lambda prompt: 900 * (prompt + 1))
    learns(role, gather, "updated")
    assert saved_rankers(saved) == [3, 2]


def test_adapters_of_another_model_than_the_one_that_is_there_are_not_used(make, data, gather, tmp_path):
    pytest.importorskip("peft")
    method = Sft(objective="pairwise", steps=1, batch=16, most_tokens=64, lora_rank=2, init_lr=1e-3)
    given = {"method": method, "init": language_model(tmp_path / "model"), "budget_s": 120.0}
    role = make(**given)
    data.finish(lambda prompt: 10 * (prompt + 1))
    learns(role, gather, "trained")
    role.close()
    with (tmp_path / "model" / "config.json").open("a") as file:
        file.write("\n")
    role = make(**given)
    (note,) = role.ready().notes
    assert "found another model" in note
    learns(role, gather, "trained")


def test_what_breaks_it_while_it_learns_is_raised_too(make, data, gather):
    role = make(method="no-such-method")
    data.finish(lambda prompt: 10 * (prompt + 1))
    with pytest.raises(UnknownMethodError, match="no-such-method"):
        gather(role, lambda _: False, "an error")


def test_a_data_role_that_does_not_come_back_in_time_breaks_it(make, caller, gather):
    role = make(data_s=0.05)
    caller.role = None
    with pytest.raises(MemberDeadError):
        gather(role, lambda _: False, "an error")


@pytest.mark.parametrize("seed", range(20))
def test_finished_lengths_are_handed_out_once_each_and_the_last_ones_are_kept(seed):
    draw, kept, noted, seen, got = random.Random(seed), FinishedLengths(7), [], 0, []
    for _ in range(40):
        for _ in range(draw.randint(0, 5)):
            name = f"t{draw.randint(0, 200)}"
            again = name in [each for each, _ in noted[-7:]]
            kept.note(name, "a prompt", 3, 1, truncated=False)
            if not again:
                noted.append((name, len(noted) + 1))
        fresh = kept.since(seen)
        assert [each.number for each in fresh] == [number for _, number in noted if number > seen][-7:], f"seed {seed}"
        seen, got = (fresh[-1].number if fresh else seen), [*got, *fresh]
    assert len({each.number for each in got}) == len(got)
    assert FinishedLengths().since(5) == []  # the data role began anew
    other = FinishedLengths()
    other.note("t", "a prompt", 3, 1, truncated=True)
    assert other.since(5) == [FinishedLength(1, "a prompt", 3, 1, truncated=True)]
