"""The prompt stream: every row once an epoch, the same stream every time, and errors that say where."""

import bz2
import gzip
import json
import lzma
from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.trajstore import ParquetSupportError, PromptFileError, PromptPool


def rows(count):
    return [{"prompt": f"q{number}", "answer": f"a{number}"} for number in range(count)]


@given(st.integers(1, 30), st.none() | st.integers(0, 5), st.integers(0, 3))
def test_each_epoch_has_each_row_once(count, seed, epoch):
    pool = PromptPool(rows(count), shuffle_seed=seed)
    prompts = [pool[index] for index in range(epoch * count, (epoch + 1) * count)]
    assert sorted(prompt.row for prompt in prompts) == list(range(count))
    assert {prompt.epoch for prompt in prompts} == {epoch}
    assert all(prompt.prompt == f"q{prompt.row}" and prompt.answer == f"a{prompt.row}" for prompt in prompts)


@given(st.integers(0, 5), st.lists(st.integers(0, 500), max_size=30))
def test_an_index_always_means_the_same_prompt(seed, indices):
    pool, fresh = PromptPool(rows(7), shuffle_seed=seed), PromptPool(rows(7), shuffle_seed=seed)
    expected = {index: fresh[index] for index in sorted(indices)}
    assert [pool[index] for index in indices] == [expected[index] for index in indices]
    assert all(prompt.index == index for index, prompt in expected.items())


def test_epochs_and_seeds_shuffle_differently():
    pool = PromptPool(rows(50), shuffle_seed=1)
    first, second = ([pool[start + place].row for place in range(50)] for start in (0, 50))
    other = [PromptPool(rows(50), shuffle_seed=2)[place].row for place in range(50)]
    assert len({tuple(order) for order in (first, second, other, range(50))}) == 4


def test_the_shuffle_is_pinned():
    # A stream that changed between releases or machines would give a resumed run other prompts.
    pool = PromptPool(rows(8), shuffle_seed=3)
    assert [pool[index].row for index in range(16)] == [3, 7, 2, 5, 1, 0, 4, 6, 4, 2, 7, 3, 5, 0, 1, 6]


@pytest.mark.parametrize("seed", ["x", "7", 7.0, True])
def test_what_is_no_seed_is_refused(tmp_path, seed):
    row = {"prompt": "a", "answer": "b"}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    refused = pytest.raises(TypeError, match=f"shuffle_seed: found {seed!r}, expected a whole number or None")
    with refused:
        PromptPool([row], shuffle_seed=seed)
    with refused:
        PromptPool.from_file(tmp_path / "rows.jsonl", shuffle_seed=seed)


def test_without_a_seed_the_order_is_that_of_the_file():
    assert [prompt.row for prompt, _ in zip(PromptPool(rows(3)), range(7), strict=False)] == [0, 1, 2, 0, 1, 2, 0]
    assert len(PromptPool(rows(3))) == 3
    with pytest.raises(IndexError, match="-1"):
        PromptPool(rows(3))[-1]


def test_jsonl(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text('{"q": "Größe?", "a": 4, "check": "math", "level": 2}\n\n{"q": "b", "a": "x"}\n', encoding="utf-8")
    pool = PromptPool.from_file(file, prompt_column="q", answer_column="a", verifier_column="check")
    assert (pool[0].prompt, pool[0].answer, pool[0].verifier, pool[0].metadata) == ("Größe?", "4", "math", {"level": 2})
    assert (pool[1].prompt, pool[1].verifier, pool[1].metadata) == ("b", None, {})
    assert len(PromptPool.from_file([file, str(file)], prompt_column="q", answer_column="a")) == 4


def test_csv(tmp_path):
    file = tmp_path / "train.csv"
    file.write_bytes(
        b'\xef\xbb\xbfprompt,answer,level\r\n"2 + 2,\nin words?",four,1\r\n\r\n3 \xe2\x82\xac?,"a ""b""",\r\n'
    )
    pool = PromptPool.from_file(file)
    assert [(pool[i].prompt, pool[i].answer, pool[i].metadata) for i in range(len(pool))] == [
        ("2 + 2,\nin words?", "four", {"level": "1"}),
        ("3 €?", 'a "b"', {"level": ""}),
    ]


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    file = tmp_path / "train.parquet"
    table = {"prompt": ["a", "b"], "answer": ["1", "2"], "verifier": ["math", None], "extra": [{"x": 1}, None]}
    parquet.write_table(pyarrow.table(table), file)
    pool = PromptPool.from_file(file)
    assert (pool[0].prompt, pool[0].verifier, pool[0].metadata) == ("a", "math", {"extra": {"x": 1}})
    assert (pool[1].answer, pool[1].verifier) == ("2", None)
    parquet.write_table(pyarrow.table({"prompt": ["a"], "answer": pyarrow.array([None], pyarrow.string())}), file)
    with pytest.raises(
        PromptFileError, match=r"train.parquet, row 1: found NoneType in column 'answer', expected text"
    ):
        PromptPool.from_file(file)
    file.write_bytes(b"PAR1 and then rubbish")
    with pytest.raises(PromptFileError, match="expected a Parquet file"):
        PromptPool.from_file(file)


ROW = {"prompt": "q", "answer": "a", "level": 2}


def packed(pack, text):
    return pack(text.encode())


def gzipped(data):
    """Packed without the time, which would be in the test's name and differ between the processes that collect it."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.json", json.dumps([ROW], indent=1).encode()),
        ("x.json", (json.dumps(ROW) + "\n").encode()),
        ("x.jsonl", b"\xef\xbb\xbf" + json.dumps(ROW).encode()),
        ("x.jsonl.gz", packed(gzipped, json.dumps(ROW))),
        ("x.JSON.GZ", packed(gzipped, json.dumps([ROW]))),
        ("x.jsonl.bz2", packed(bz2.compress, json.dumps(ROW))),
        ("x.ndjson.xz", packed(lzma.compress, json.dumps(ROW))),
    ],
)
def test_other_forms_of_json(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    pool = PromptPool.from_file(tmp_path / name)
    assert [(pool[0].prompt, pool[0].answer, pool[0].metadata), len(pool)] == [("q", "a", {"level": 2}), 1]


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.tsv", b"prompt\tanswer\nq, r\ta\n"), ("x.csv.gz", gzipped(b'prompt,answer\n"q, r",a\n'))],
)
def test_other_forms_of_tables(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert (PromptPool.from_file(tmp_path / name)[0].prompt, PromptPool.from_file(tmp_path / name)[0].answer) == (
        "q, r",
        "a",
    )


def test_a_csv_value_may_be_long(tmp_path):
    (tmp_path / "x.csv").write_text(f"prompt,answer\n{'y ' * 200_000},3\n")
    assert len(PromptPool.from_file(tmp_path / "x.csv")[0].prompt) == 400_000


@pytest.mark.parametrize("kind", ["new_stream", "new_file"])
def test_arrow(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import ipc

    table = pyarrow.table({"prompt": ["a", "b", "c"], "answer": [1, 2, 3]})
    with getattr(ipc, kind)(str(tmp_path / "x.arrow"), table.schema) as file:
        file.write_table(table, max_chunksize=2)
    pool = PromptPool.from_file(tmp_path / "x.arrow")
    assert [(pool[at].prompt, pool[at].answer) for at in range(3)] == [("a", "1"), ("b", "2"), ("c", "3")]
    (tmp_path / "x.arrow").write_bytes(b"ARROW1 and then rubbish")
    with pytest.raises(PromptFileError, match="expected an Arrow file"):
        PromptPool.from_file(tmp_path / "x.arrow")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Decimal("12.50"), "12.50"),
        (Decimal("1E+3"), "1000"),
        (Decimal("-0.000001"), "-0.000001"),
        (5.0, "5"),  # a column of whole numbers in which one is missing
        (-0.5, "-0.5"),
        (-(2**70), str(-(2**70))),
        (1e300, "1e+300"),
        (date(2024, 2, 29), "2024-02-29"),
        (" 5.0", " 5.0"),
    ],
)
def test_answers_are_text(answer, text):
    assert PromptPool([{"prompt": "q", "answer": answer}])[0].answer == text


@pytest.mark.parametrize(
    ("column", "answer"),
    [
        ("reward_model.ground_truth", "5"),
        ("turns.1.value", "6"),
        ("as_text.inner.0", "7"),
        ("flat.name", "8"),  # a column's own name counts first
        ("none", "found the columns as_text, flat, flat.name, prompt, reward_model, turns, expected 'none' among them"),
        ("none.x", "found the columns .*, expected 'none.x' among them"),
        ("reward_model.x", "found ground_truth, style in 'reward_model', expected 'x' in it"),
        ("reward_model.style.x", "found str in 'reward_model.style', expected 'x' in it"),
        ("turns.2", "found list in 'turns', expected '2' in it"),
        pytest.param(f"turns.{'9' * 5000}", "found list in 'turns', expected '999", id="an index of many digits"),
        ("reward_model", "found dict in column 'reward_model', expected text or a number"),
    ],
)
def test_a_column_may_lie_in_another(tmp_path, column, answer):
    row = {
        "prompt": "q",
        "reward_model": {"ground_truth": "5", "style": "rule"},
        "turns": [{"value": 1}, {"value": 6}],
        "as_text": '{"inner": [7]}',
        "flat": {"name": 1},
        "flat.name": 8,
    }
    if not answer.isdecimal():
        with pytest.raises(PromptFileError, match=f"row 1: {answer}"):
            PromptPool([row], answer_column=column)
        return
    found = PromptPool([row], answer_column=column)[0]
    assert found.answer == answer
    assert found.metadata == {key: value for key, value in row.items() if key not in ("prompt", column)}


@given(st.text(st.characters()) | st.text(st.sampled_from("a\ud83d\ude00\udfffé")))
def test_text_that_nothing_can_encode_is_replaced(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("halves") / "x.jsonl"
    file.write_text(json.dumps({"prompt": "q", "answer": f"<{text}>", text: [text]}))
    found = PromptPool.from_file(file)[0]
    whole = json.loads(json.dumps(text))  # joins what are two halves of one character
    expected = "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in whole)
    assert found.answer == f"<{expected}>"
    if expected not in ("prompt", "answer", "verifier"):
        assert found.metadata == {expected: [expected]}


def test_parquet_without_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    file = tmp_path / "train.parquet"
    file.write_bytes(b"PAR1")
    with pytest.raises(ParquetSupportError, match=r"tailrace-trajstore\[parquet\]"):
        PromptPool.from_file(file)


GOOD = json.dumps({"prompt": "q", "answer": "a"}) + "\n"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (
            "x.jsonl",
            GOOD + "{oops\n",
            r"x\.jsonl, line 2: found no JSON \(.*column 2\), expected an object on each line",
        ),
        ("x.jsonl", GOOD + "[1]\n", r"x\.jsonl, line 2: found list, expected an object"),
        (
            "x.jsonl",
            '{"prompt": ' + "9" * 5000 + "}",
            r"x\.jsonl, line 1: found JSON that cannot be read \(Exceeds the limit",
        ),
        (
            "x.jsonl",
            '{"prompt": ' + "[" * 100_000,
            r"x\.jsonl, line 1: found JSON that cannot be read \(maximum recursion",
        ),
        (
            "x.jsonl",
            '{"prompt": "q", "answer": NaN}\n',
            r"line 1: found nan in column 'answer', expected text or a finite",
        ),
        ("x.json", "", r"x\.json: found no rows, expected at least one prompt"),
        ("x.json", '{"data":\n[]}', r"x\.json: found one dict, expected an array of objects"),
        ("x.json", '[{"prompt":\n "q"', r"x\.json: found no JSON \(.*line 2, column 5\), expected an array of objects"),
        ("x.json", "[3]", r"x\.json, row 1: found int, expected an object as each entry"),
        ("x.jsonl.gz", b"rubbish", r"x\.jsonl\.gz: found no readable file \(Not a gzipped file"),
        (
            "x.jsonl.gz",
            gzipped(GOOD.encode() * 9)[:-9],
            r"x\.jsonl\.gz: found no readable file \(Compressed file ended",
        ),
        ("x.parquet.gz", b"", r"found the ending '\.gz', expected one of"),
        (
            "x.jsonl",
            GOOD + '\n{"prompt": "q"}\n',
            r"x\.jsonl, line 3: found the columns prompt, expected 'answer' among them",
        ),
        ("x.jsonl", "{}\n", r"x\.jsonl, line 1: found the columns none, expected 'prompt' among them"),
        ("x.jsonl", '{"prompt": 3, "answer": "a"}\n', r"line 1: found int in column 'prompt', expected text"),
        (
            "x.jsonl",
            '{"prompt": "q", "answer": true}\n',
            r"line 1: found bool in column 'answer', expected text or a number",
        ),
        (
            "x.jsonl",
            '{"prompt": "q", "answer": "a", "verifier": 1}\n',
            r"found int in column 'verifier', expected a name",
        ),
        ("x.jsonl", b'{"prompt": "\xff"}\n', r"line 1: found bytes that are not UTF-8"),
        ("x.jsonl", "\n \n", r"x\.jsonl: found no rows, expected at least one prompt"),
        ("x.jsonl", None, r"x\.jsonl: found no such file"),
        (
            "x.txt",
            "q\n",
            r"x\.txt: found the ending '\.txt', expected one of \.jsonl, .*\.csv, .*\.parquet, .*or a dataset as hf:",
        ),
        ("x.csv", "prompt,answer\n", r"x\.csv: found no rows, expected at least one prompt"),
        ("x.csv", "", r"x\.csv: found no rows"),
        ("x.csv", "prompt,answer\nq,a\nq\n", r"x\.csv, line 3: found 1 values, expected 2: prompt, answer"),
        ("x.csv", "prompt,answer\nq,a,b\n", r"x\.csv, line 2: found 3 values, expected 2"),
        (
            "x.csv",
            "prompt;answer\nq;a\n",
            r"x\.csv, line 2: found the columns prompt;answer, expected 'prompt' among them",
        ),
        ("x.csv", "prompt,answer,prompt\nq,a,q\n", r"x\.csv, line 1: found the column 'prompt' twice"),
        ("x.csv", "prompt,answer,\nq,a,q\n", r"x\.csv, line 1: found no name for column 3"),
        ("x.csv", 'prompt,answer\n"q,a\n', r"x\.csv, line 2: found no CSV \(unexpected end of data\)"),
        ("x.csv", b"prompt,answer\nq,a\n\xff,a\n", r"x\.csv, line 3: found bytes that are not UTF-8"),
    ],
)
def test_errors_are_one_line_and_say_where(tmp_path, name, content, words):
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(PromptFileError, match=words) as caught:
        PromptPool.from_file(file)
    assert "\n" not in str(caught.value)


def test_rows_in_memory_are_named_too():
    with pytest.raises(PromptFileError, match="row 2: found the columns prompt"):
        PromptPool([*rows(1), {"prompt": "q"}])
    with pytest.raises(PromptFileError, match="found no rows"):
        PromptPool([])
