"""Everything that is wrong with prompt files is told before anything starts, row by row."""

import json
import textwrap

import pytest

from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.run.prompts.data_check import check_data
from tailrace.pipeline.run.prompts.reading import read_files

pytestmark = pytest.mark.usefixtures("one_verifier_process")


def faults(tmp_path, train, held_out=None, **tables):
    files = {"train": tmp_path / "train.jsonl"}
    files["train"].write_bytes(b"\n".join(train) + b"\n")
    if held_out is not None:
        files["held_out"] = tmp_path / "held_out.jsonl"
        files["held_out"].write_bytes(b"\n".join(held_out) + b"\n")
    task = {name: str(path) for name, path in files.items()} | {"verifier": "numeric"} | tables.pop("task", {})
    try:
        check_data(validate([("mine", {"task": task, **tables})]))
    except ConfigError as error:
        return str(error).replace(f"{tmp_path}/", "").splitlines()
    return []


def row(**columns):
    return json.dumps({"prompt": "1 + 1 =", "answer": "2"} | columns).encode()


def test_rows_that_are_right(tmp_path):
    assert faults(tmp_path, [row(), b"", row(prompt="2 + 2 =", answer=4)], [row(prompt="3 + 3 =", answer="6")]) == []


def test_every_wrong_row_is_told_with_its_line(tmp_path):
    found = faults(
        tmp_path,
        [row(), b"x", b"[]", row(answer=None), b'{"answer": "2"}', row(prompt=" "), row(verifier="mth"), b"\xff"],
    )
    assert found == [
        "train.jsonl, line 2: found no JSON (Expecting value, column 1), expected an object on each line",
        "train.jsonl, line 3: found list, expected an object on each line",
        "train.jsonl, line 4: found NoneType in column 'answer', expected text or a number",
        "train.jsonl, line 5: found the columns answer, expected 'prompt' among them",
        "train.jsonl, line 6: found an empty prompt, expected text",
        "train.jsonl: 2 more rows are wrong",
    ]


def test_a_verifier_that_is_not_there_or_cannot_judge(tmp_path):
    (unknown,) = faults(tmp_path, [row(), row(prompt="x", verifier="mth")])
    assert unknown.startswith(
        "train.jsonl, line 2: found the verifier 'mth', expected one of code, environment, exact, "
    )
    (cannot,) = faults(tmp_path, [row(answer="twelve")])
    assert cannot.startswith(
        "train.jsonl: no row has an answer that can be matched; train.jsonl, line 1: it is 'twelve'"
    )


def test_prompts_that_are_held_out_and_trained_on(tmp_path):
    (line,) = faults(tmp_path, [row(), row(prompt="a")], [row(prompt="b"), row(), row(prompt="a")])
    assert line == (
        "held_out.jsonl, line 2: this held-out prompt is in train.jsonl too, and so do 1 more; expected prompts not "
        "trained on"
    )


@pytest.fixture
def model(tmp_path):
    """A tokenizer of words, and a context of 40 tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 40}')
    return tmp_path


def test_prompts_that_do_not_fit_the_context(tmp_path, model):
    rows = [row(prompt="a " * 30), row(prompt="a " * 31)]
    (line,) = faults(tmp_path, rows, model={"path": str(tmp_path)}, rollout={"max_tokens": 10})
    assert line == (
        "train.jsonl, line 2: found a prompt of 31 tokens, expected at most 30: the context less rollout.max_tokens = 10"
    )


@pytest.mark.parametrize("name", ["train.txt", "missing.csv", "hf:nobody"])
def test_a_file_that_is_none(tmp_path, name):
    (line,) = faults(tmp_path, [row()], task={"train": name if ":" in name else str(tmp_path / name)})
    assert name in line


def test_a_generated_task_has_no_files():
    check_data(validate([("mine", {"task": {"name": "long-chain-sum"}})]))


def test_a_verifier_of_ones_own_is_tried_once(tmp_path):
    (tmp_path / "mine.py").write_text("def verify(response, answer, metadata):\n    return float(answer in response)\n")
    mine = {"verifier": f"{tmp_path / 'mine.py'}:verify"}
    assert faults(tmp_path, [row()], task=mine) == []
    (tmp_path / "mine.py").write_text("def verify(response, answer):\n    return 1.0\n")
    (line,) = faults(tmp_path, [row()], task=mine)
    assert "tried on the first row of train.jsonl" in line
    assert "found verify(response, answer), expected verify(response, answer, metadata)" in line


def checked(tmp_path, rows, verify=None, **task):
    """What is found in a file of rows that are not wrong."""
    (tmp_path / "t.jsonl").write_bytes(b"\n".join(rows) + b"\n")
    if verify is not None:
        (tmp_path / "mine.py").write_text(textwrap.dedent(verify))
        task = {"verifier": f"{tmp_path / 'mine.py'}:verify", **task}
    return check_data(validate([("mine", {"task": {"train": str(tmp_path / "t.jsonl"), **task}})]))


PAYS = {
    "a tag": "return float(f'<answer>{answer}</answer>' in response)",
    "a box": r"return float('\\boxed{' + answer + '}' in response)",
    "bold": "return float(f'**{answer}**' in response)",
    "a sentence": "return float(response.endswith(f'answer is {answer}.'))",
    "the answer alone": "return float(response == answer)",
    "a thought and a tag": "return float(response.startswith('<think>') and f'<answer>{answer}</answer>' in response)",
    "hashes": "return float(response.strip().endswith(f'#### {answer}'))",
    "a solution of the row's": "return float(response == metadata['solution'])",
    "less than nothing for no answer": "return 0.0 if answer in response else -1.0",
    "a verdict without a reward": "return {'reward': 0.0, 'correct': answer in response}",
}


@pytest.mark.parametrize(
    "form", [*list(PAYS)[:3], *(pytest.param(form, marks=pytest.mark.deep) for form in list(PAYS)[3:])]
)
def test_a_verifier_that_pays_a_right_answer_in_one_form_is_not_spoken_of(tmp_path, form):
    rows = [row(prompt=f"{n} + 1 =", answer=str(n + 1), solution=f"by counting: {n + 1}") for n in range(6)]
    assert checked(tmp_path, rows, f"def verify(response, answer, metadata): {PAYS[form]}").notes == []


@pytest.mark.parametrize(
    "judge",
    [
        "return 1.0",
        "return float(response == metadata.get('no such column'))",
        "return -1.0 if answer in response else 0.0",
        *(
            pytest.param(judge, marks=pytest.mark.deep)
            for judge in (
                "return 0.0",
                "return 0.5",
                "return False",
                "return float(answer in response[:0])",
                "return float(len(response) < 0)",
                "return float(answer.upper() == 'THE ANSWER')",
            )
        ),
    ],
)
def test_a_verifier_that_pays_no_right_answer_more_than_none_is_said_before_the_start(tmp_path, judge):
    found = checked(tmp_path, [row(), row(prompt="a", answer="3")], f"def verify(response, answer, metadata): {judge}")
    (note,) = found.notes
    assert "it paid nothing for a right answer to the first 2 rows of" in note
    assert "<answer>2</answer>" in note


def test_one_row_that_is_paid_is_enough_and_a_failure_later_is_no_refusal(tmp_path):
    verify = """
        def verify(response, answer, metadata):
            if answer == "4":
                raise ValueError("four")
            return float(answer == "3" and "3" in response)
        """
    rows = [row(), row(prompt="a", answer="4"), row(prompt="b", answer="3")]
    assert checked(tmp_path, rows, verify).notes == []
    with pytest.raises(ConfigError, match=r"tried on the first row of .*four"):
        checked(tmp_path, rows[1:], verify)


EMPTY = [row(prompt=f"{n}?", answer=str(n)) for n in range(4)] + [row(prompt="5?", answer="")]


def test_answers_that_can_never_be_matched_are_counted_and_left_out_if_so_wished(tmp_path):
    kept, dropped = (
        checked(tmp_path, EMPTY, verifier="math"),
        checked(tmp_path, EMPTY, verifier="math", unmatched="drop"),
    )
    assert (kept.counts["train"].used, dropped.counts["train"].used) == (5, 4)
    said = "1 of 5 have an answer that can never be matched ({}/t.jsonl, line 5: it is empty; verifier math) and "
    stays = 'stay in, and task.unmatched = "drop" leaves them out'
    assert str(kept.counts["train"]) == said.format(tmp_path) + stays
    assert str(dropped.counts["train"]) == said.format(tmp_path) + "were left out"
    with pytest.raises(
        ConfigError, match="line 5: found an answer that the verifier 'math' can never match: it is empty"
    ):
        checked(tmp_path, EMPTY, verifier="math", unmatched="refuse")


def test_rows_that_are_left_out_are_not_written(tmp_path):
    (tmp_path / "t.jsonl").write_bytes(b"\n".join(EMPTY))
    config = validate([("mine", {"task": {"train": str(tmp_path / "t.jsonl"), "unmatched": "drop"}})])
    read_files(config, None, into=tmp_path)
    assert [json.loads(line)["answer"] for line in (tmp_path / "train.jsonl").read_text().splitlines()] == list("0123")


@pytest.mark.parametrize(
    ("verifier", "answer", "why"),
    [
        ("math", " ", "it is empty"),
        pytest.param("math", "$$", "it is empty", marks=pytest.mark.deep),
        ("math", r"\boxed{}", "it is empty"),
        pytest.param("math", "**", None, marks=pytest.mark.deep),
        pytest.param("math", ".", "it is empty", marks=pytest.mark.deep),
        pytest.param("math", "word " * 30, "it is a text of 30 words", marks=pytest.mark.deep),
        pytest.param("math", "word " * 30 + "\n#### 5", None, marks=pytest.mark.deep),
        ("math", "word " * 30 + r"so \boxed{5}", None),
        pytest.param("math", "{5}", None, marks=pytest.mark.deep),
        ("numeric", "twelve", "it is 'twelve' and no number"),
        ("numeric", "", "it is empty"),
        ("numeric", "5_2", "it is '5_2' and no number"),
        ("numeric", "12 km", None),
        ("numeric", "So 3 + 4 = 7.\n#### 7", None),
        ("exact", " ", "it is empty"),
        ("exact", "#### ", None),
        ("exact", "word " * 30, None),
    ],
)
def test_which_answers_can_never_be_matched(tmp_path, verifier, answer, why):
    counts = checked(tmp_path, [row(), row(prompt="b", answer=answer)], verifier=verifier).counts["train"]
    assert counts.unmatched == (why is not None)
    assert why is None or why in counts.why


def test_a_file_without_an_answer_that_can_be_matched_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no row has an answer that can be matched; .*line 1: it is empty"):
        checked(tmp_path, [row(answer=""), row(prompt="b", answer=" ")], verifier="math")


def test_a_column_named_verifier_may_say_something_else(tmp_path):
    rows = [row(verifier="human, 2 of 3"), row(prompt="b", answer="3", verifier={"name": "x"})]
    with pytest.raises(ConfigError, match=r'task\.verifier_column = "" makes the column metadata'):
        checked(tmp_path, rows[:1], verifier="math")
    judge = "def verify(response, answer, metadata): return float(bool(metadata['verifier']) and answer in response)"
    assert checked(tmp_path, rows, judge, verifier_column="").notes == []
    named = [row(judge="exact", verifier="human"), row(prompt="b", answer="3", judge="numeric", verifier="human")]
    found = checked(tmp_path, named, verifier="math", verifier_column="judge")
    assert list(found.verifiers) == ["exact", "numeric"]
