"""Prompt files become the prompts that a run uses: overlong ones are refused, dropped or cut, and counted."""

import datetime
import json
from collections import Counter
from decimal import Decimal

import pytest

from tailrace.contracts import TrajectoryRef
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.prompts import Prompts, PromptSettings, item_metadata
from tailrace.pipeline.run.build import build_deployment
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.facts import facts_of
from tailrace.pipeline.run.prepare import prepare
from tailrace.pipeline.run.prompts.reading import PromptCounts, read_files
from tailrace.runtime.executor.deployment import DATA
from tailrace.trajstore import PromptPool

ROOM = 10  # tokens of a prompt: a context of 40 less 30 of a response


@pytest.fixture
def model(word_model):
    return word_model(context=40)


@pytest.fixture
def prepared(tmp_path, model):
    """Prepares a run on these rows; returns what was prepared, the prompts and what was told."""

    def run(train, held_out=({"prompt": "z", "answer": "0"},), name="run", **task):
        task.setdefault("held_out_size", 1)
        for file, rows in (("train", train), ("held_out", held_out)):
            (tmp_path / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
            task[file] = str(tmp_path / f"{file}.jsonl")
        config = validate([("mine", {"task": task, "model": {"path": str(model)}, "rollout": {"max_tokens": 30}})])
        directory = RunDirectory(tmp_path / name)
        directory.task.mkdir(parents=True, exist_ok=True)
        told = []
        return prepare(config, directory, told.append), told

    return run


def words(count, first=0):
    return " ".join(f"w{number}" for number in range(first, first + count))


def texts(path):
    pool = PromptPool.from_file(path)
    return [pool[index].prompt for index in range(len(pool))]


def test_prompts_that_fit_are_used_as_they_stand(prepared):
    rows = [{"prompt": " a  b\n", "answer": 3, "level": [1, None]}, {"prompt": words(ROOM), "answer": "x"}]
    found, told = prepared(rows)
    pool = PromptPool.from_file(found.train[0])
    assert (pool[0].prompt, pool[0].answer, pool[0].metadata) == (" a  b\n", "3", {"metadata": {"level": [1, None]}})
    assert pool[1].prompt == words(ROOM)
    assert PromptCounts(**found.counts["train"]) == PromptCounts(2, most_tokens=ROOM)
    assert [row["phase"] for row in told] == ["reading the prompts"]


def test_overlong_prompts_are_refused_by_file_and_line(prepared):
    rows = [{"prompt": "a", "answer": "x"}, {"prompt": words(ROOM + 1), "answer": "x"}]
    with pytest.raises(ConfigError, match=r"train\.jsonl, line 2: found a prompt of 11 tokens, expected at most 10"):
        prepared(rows)


def test_overlong_prompts_are_dropped_and_counted(prepared):
    rows = [{"prompt": words(count), "answer": "x"} for count in (ROOM, ROOM + 1, ROOM + 30, 1)]
    found, told = prepared(rows, [rows[1] | {"prompt": words(50, 7)}, {"prompt": "z", "answer": "x"}], overlong="drop")
    assert texts(found.train[0]) == [words(ROOM), words(1)]
    assert texts(found.held_out) == ["z"]
    assert (found.counts["train"]["rows"], found.counts["train"]["dropped"]) == (4, 2)
    assert [(row["phase"], row.get("detail")) for row in told[1:]] == [
        ("rows of task.train", "2 of 4 dropped: longer than 10 tokens"),
        ("rows of task.held_out", "1 of 2 dropped: longer than 10 tokens"),
    ]


def test_no_held_out_problem_is_asked_twice(prepared):
    held_out = [{"prompt": words(count), "answer": "x"} for count in (1, 2, ROOM + 1)]
    with pytest.raises(
        ConfigError, match=r"'task.held_out_size': found 3, expected at most 2: so many prompts of .*held_out"
    ):
        prepared([{"prompt": "a", "answer": "x"}], held_out, overlong="drop", held_out_size=3)
    prepared([{"prompt": "a", "answer": "x"}], held_out, overlong="drop", held_out_size=2)


def test_overlong_prompts_lose_their_beginning(prepared):
    found, _ = prepared([{"prompt": words(ROOM + 3), "answer": "x"}], overlong="truncate-left")
    assert texts(found.train[0]) == [words(ROOM, 3)]
    assert PromptCounts(**found.counts["train"]) == PromptCounts(1, truncated=1, most_tokens=ROOM)


def with_begin(model, begin="<s>", **settings):
    """The model's tokenizer with a token that stands before each text."""
    from tokenizers import Tokenizer, processors

    path = model / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_special_tokens(["<s>"])
    number = tokenizer.token_to_id(begin)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {begin}", special_tokens=[(begin, number)]
    )
    tokenizer.save(str(path))
    if settings:
        (model / "tokenizer_config.json").write_text(json.dumps(settings))


def encoded(found, model):
    prompts = Prompts(PromptSettings(tokenizer=model / "tokenizer.json", train=found.train, held_out=None, modes={}))
    return prompts.encode(TrajectoryRef("0.0", 0, 0, prompt=0))


@pytest.mark.parametrize(
    ("settings", "before"),
    [
        ({}, (2,)),  # what the tokenizer does, and not its end behind the text
        ({"add_bos_token": True, "bos_token": "a"}, (0,)),
        ({"add_bos_token": True, "bos_token": {"content": "a"}}, (0,)),
        ({"add_bos_token": False, "bos_token": "a"}, ()),
        ({"bos_token": "a"}, (2,)),
    ],
)
def test_a_text_stands_behind_the_token_that_the_tokenizer_asks_for(prepared, model, settings, before):
    with_begin(model, **settings)
    found, _ = prepared([{"prompt": "x a", "answer": "x"}])
    assert encoded(found, model) == (*before, 1, 0)  # "x" is unknown, 1


def test_a_text_that_begins_so_itself_gets_no_second_one(prepared, model):
    with_begin(model, begin="a")
    found, _ = prepared([{"prompt": "a x", "answer": "x"}])
    assert encoded(found, model) == (0, 1)


def test_the_token_before_a_text_counts_and_stays_when_it_is_cut(prepared, model):
    with_begin(model, begin="a")
    with pytest.raises(ConfigError, match=r"line 1: found a prompt of 11 tokens, expected at most 10"):
        prepared([{"prompt": words(ROOM), "answer": "x"}])
    found, _ = prepared([{"prompt": words(ROOM), "answer": "x"}], overlong="truncate-left", name="cut")
    assert encoded(found, model) == (0, *[1] * (ROOM - 1))


def test_a_text_whose_end_has_other_tokens_is_cut_until_it_fits(tmp_path):
    from tokenizers import Tokenizer, models

    from tailrace.pipeline.run.prompts.reading import PromptRoom

    # "abcd" is one token, but "bcd" three, and "€" is one token of three for its bytes.
    vocabulary = {token: number for number, token in enumerate(["a", "b", "c", "d", "ab", "abc", "abcd"])}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b"), ("ab", "c"), ("abc", "d")]))
    context = PromptRoom(tokenizer, 3, 1)
    for text in ("abcdabcdabcd", "dcbabcdcbadddd", "bcd" * 30, "abcd" * 30 + "b"):
        cut = context.truncated(text)
        assert text.endswith(cut)
        assert 0 < len(context.tokens(cut)) <= 3
        assert cut == text or len(context.tokens(text)) > 3


def test_a_file_of_overlong_prompts_alone(prepared):
    with pytest.raises(ConfigError, match="every prompt is longer than 10 tokens"):
        prepared([{"prompt": words(11), "answer": "x"}] * 3, overlong="drop")


def test_a_response_that_fills_the_context(prepared, tmp_path, model):
    (model / "config.json").write_text('{"max_position_embeddings": 30}')
    with pytest.raises(ConfigError, match=r"'rollout.max_tokens': found 30, expected fewer than the 30 tokens"):
        prepared([{"prompt": "a", "answer": "x"}])


def test_a_run_that_is_resumed_has_the_same_prompts(prepared, tmp_path):
    rows = [{"prompt": words(count), "answer": "x"} for count in (1, 20, 2)]
    first, _ = prepared(rows, overlong="drop")
    before = texts(first.train[0])
    again, told = prepared(rows[2:], overlong="drop")  # the file was changed meanwhile
    assert (texts(again.train[0]), again.counts, told) == (before, first.counts, [])


def test_a_verifier_gets_every_other_column_in_json(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file, hour = tmp_path / "t.parquet", datetime.timedelta(hours=1)
    columns = {
        "prompt": ["q"],
        "answer": [Decimal("12.50")],
        "image": [{"bytes": b"\x00\xff", "path": None}],
        "day": [datetime.date(2024, 2, 29)],
        "taken": [[datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC), None]],
        "length": [hour],
        "share": [Decimal("0.10")],
        "far": pyarrow.array([9 * 10**17], pyarrow.timestamp("us")),  # in the year 30489
        "pairs": pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        "broken": pyarrow.array([b"\xffok"]).view(pyarrow.string()),
    }
    parquet.write_table(pyarrow.table(columns), file)
    found = read_files(validate([("mine", {"task": {"train": str(file)}})]), None, into=tmp_path)
    assert found.faults == ()
    row = PromptPool.from_file(tmp_path / "train.jsonl")[0]
    assert row.answer == "12.50"
    assert item_metadata(row) == {
        "image": {"bytes": "AP8=", "path": None},
        "day": "2024-02-29",
        "taken": ["2024-02-29 12:00:00+00:00", None],
        "length": "1:00:00",
        "share": "0.10",
        "far": "30489-11-11 16:00:00.000000",
        "pairs": [["k", 1]],
        "broken": "\ufffdok",
    }


@pytest.mark.parametrize(
    ("columns", "seen"),
    [
        ({"unit": "km", "metadata": {"source": "a"}}, {"unit": "km", "source": "a"}),
        ({"unit": "km", "metadata": {"unit": "m"}}, {"unit": "m"}),
        ({"unit": "km", "metadata": '{"tests": [1]}'}, {"unit": "km", "tests": [1]}),
        ({"unit": "km", "metadata": "a note"}, {"unit": "km", "metadata": "a note"}),
        ({"unit": "km", "metadata": None}, {"unit": "km", "metadata": None}),
        ({"beginning": {"of": "time"}}, {"beginning": {"of": "time"}}),
        (
            {"reward_model": {"ground_truth": "x", "style": "rule"}},
            {"reward_model": {"ground_truth": "x", "style": "rule"}},
        ),
    ],
)
def test_a_column_of_metadata_stands_beside_the_others(prepared, columns, seen):
    found, _ = prepared([{"prompt": "q", "answer": "a", **columns}])
    assert item_metadata(PromptPool.from_file(found.train[0])[0]) == seen


def test_a_character_of_which_half_is_there_is_replaced(prepared):
    found, _ = prepared([{"prompt": "an emoji \ud83d", "answer": "\ude00", "note": ["\ud83d\ude00", {"\udc00": 1}]}])
    row = PromptPool.from_file(found.train[0])[0]
    assert (row.prompt, row.answer) == ("an emoji \ufffd", "\ufffd")
    assert item_metadata(row) == {"note": ["\U0001f600", {"\ufffd": 1}]}


def test_counts_in_words():
    assert str(PromptCounts(5, most_tokens=9)) == ""
    assert str(PromptCounts(5_000, 1_200, 3, 9)) == (
        "1,200 of 5,000 dropped and 3 of 5,000 cut off at their beginning: longer than 9 tokens"
    )


def test_several_sources_are_mixed_by_their_shares(tmp_path, model):
    for name, count in (("a", 2), ("b", 40)):
        rows = [
            {"prompt": f"{name}{row}", "answer": "x", "verifier": "exact" if row == 1 else None} for row in range(count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = [
        {"path": str(tmp_path / "a.jsonl"), "share": 0.25, "verifier": "numeric"},
        {"path": str(tmp_path / "b.jsonl"), "share": 0.75},
    ]
    config = validate(
        [("mine", {"task": {"sources": sources}, "model": {"path": str(model)}, "rollout": {"max_tokens": 30}})]
    )
    directory = RunDirectory(tmp_path / "run")
    directory.task.mkdir(parents=True)
    for found in (
        prepare(config, directory, lambda _: None),
        prepare(config, directory, lambda _: None),
    ):  # and resumed
        assert found.shares == (0.25, 0.75)
        assert set(found.counts) == {"sources.0", "sources.1"}
        prompts = Prompts(
            PromptSettings(
                tokenizer=model / "tokenizer.json",
                train=found.train,
                held_out=None,
                modes={},
                shares=found.shares,
                shuffle_seed=3,
            )
        )
        drawn = [prompts.prompt(TrajectoryRef(f"{index}.0", index, 0, prompt=index)) for index in range(40)]
        assert Counter(prompt.prompt[0] for prompt in drawn) == {"a": 10, "b": 30}
        assert {prompt.verifier for prompt in drawn if prompt.prompt == "a0"} == {"numeric"}
        assert {prompt.verifier for prompt in drawn if prompt.prompt == "a1"} == {"exact"}
        assert {prompt.verifier for prompt in drawn if prompt.prompt[0] == "b" and prompt.prompt != "b1"} == {None}


@pytest.mark.parametrize("shuffle", [True, False])
def test_prompts_come_in_the_order_of_their_file_where_they_are_not_shuffled(shuffle, tmp_path, model):
    (tmp_path / "a.jsonl").write_text("".join(f'{{"prompt": "a{row}", "answer": "x"}}\n' for row in range(40)))
    task = {"train": str(tmp_path / "a.jsonl"), "shuffle": shuffle}
    config = validate(
        [
            (
                "mine",
                {
                    "seed": 3,
                    "task": task,
                    "model": {"path": str(model)},
                    "rollout": {"max_tokens": 30, "stop_tokens": [1]},
                },
            )
        ]
    )
    directory = RunDirectory(tmp_path / "run")
    directory.task.mkdir(parents=True)
    deployment = build_deployment(config, prepare(config, directory, lambda _: None), directory, token="")
    prompts = Prompts(deployment.roles[DATA].settings.prompts)
    drawn = [prompts.prompt(TrajectoryRef(f"{index}.0", index, 0, prompt=index)).prompt for index in range(80)]
    rows = [f"a{row}" for row in range(40)]
    assert sorted(drawn[:40]) == sorted(drawn[40:]) == sorted(rows)
    assert (drawn == 2 * rows) == (not shuffle)
    assert facts_of(config).shuffle_seed == (3 if shuffle else None)
