"""Prompts that an environment says itself: asked once for each row before a run, and the same in each of the row's sessions."""

import json
import sys

import pytest

from tailrace.contracts import Purpose, TrajectoryRef
from tailrace.pipeline.config.loading import validate
from tailrace.pipeline.errors import ConfigError
from tailrace.pipeline.roles.prompts import DecodingMode, Prompts, PromptSettings, beginning_of, session_row
from tailrace.pipeline.run.build import build_spec
from tailrace.pipeline.run.directory import RunDirectory
from tailrace.pipeline.run.environment_setup import environment_role
from tailrace.pipeline.run.prepare import prepare
from tailrace.pipeline.run.prompts.environment_prompts import row_seed
from tailrace.reward.tasks import get_task
from tailrace.trajstore import PromptFileError, PromptPool

ENVIRONMENTS = '''
import json
import os


class Riddles:
    """Begins with the riddle of a number, and notes each row that it is asked for."""

    def __init__(self, log, words=3):
        self.log, self.words = log, words

    def rows(self, start, stop):
        return [{"verifier": "environment", "metadata": {"number": each}} for each in range(start, min(stop, 12))]

    def reset(self, row):
        with open(self.log, "a") as file:
            file.write(json.dumps(row) + "\\\\n")
        return self.said(row)

    def said(self, row):
        return " ".join(["riddle"] * self.words + [str(row["metadata"].get("number", row["seed"]))])

    def step(self, action):
        return {"observation": "no", "done": True}

    def close(self):
        pass


class Fickle(Riddles):
    def said(self, row):
        return os.urandom(8).hex()


class Weak(Riddles):
    def said(self, row):
        if row["metadata"]["number"] % 2:
            raise RuntimeError("no riddle " + str(row["metadata"]["number"]))
        return super().said(row)


class Reads(Riddles):
    rows = None

    def said(self, row):
        return row["prompt"]


class Renders(Riddles):
    """Says token ids; every third one is `odd`."""

    tokenized = True

    def __init__(self, log, words=3, odd=1):
        super().__init__(log, words)
        self.odd = odd

    def said(self, row):
        return [self.odd if place % 3 == 0 else 0 for place in range(self.words)]
'''
CHAT = [{"role": "user", "content": "b"}]
ROOM = 10  # tokens of a prompt: a context of 40 less 30 of a response


class Run:
    """A run's directory, and the environments that it may ask."""

    def __init__(self, folder, model):
        self.folder, self.model, self.log, self.told = folder, model, folder / "asked.jsonl", []
        (folder / "riddles.py").write_text(ENVIRONMENTS.replace("\\\\n", "\\n"))

    def config(self, name, task, sessions=3, steps=2, **options):
        environment = {"name": f"{self.folder / 'riddles.py'}:{name}", "workers": 1, "sessions": sessions}
        environment["options"] = {"log": str(self.log), **options}
        tables = {"model": {"path": str(self.model)}, "rollout": {"max_tokens": 30}, "environment": environment}
        pipeline = {"steps": steps, "prompts_per_step": 4}
        return validate([("mine", {"task": {"held_out_size": 4, **task}, "pipeline": pipeline, **tables})])

    def file(self, *rows):
        path = self.folder / "mine.jsonl"
        path.write_text("".join(json.dumps({"answer": "1", **row}) + "\n" for row in rows))
        return {"train": str(path), "verifier": "environment"}

    def prepare(self, name, task=None, folder="run", **settings):
        directory = RunDirectory(self.folder / folder)
        directory.task.mkdir(parents=True, exist_ok=True)
        return prepare(self.config(name, task or {}, **settings), directory, self.told.append)

    @property
    def asked(self):
        return [json.loads(line) for line in self.log.read_text().splitlines()]


@pytest.fixture
def run(tmp_path, word_model):
    return Run(tmp_path, word_model(context=40))


def prompts(path):
    pool = PromptPool.from_file(path)
    return [pool[index] for index in range(len(pool))]


def texts(path):
    return [prompt.prompt for prompt in prompts(path)]


def test_an_environments_own_rows_are_held_out_first_and_then_trained_on(run):
    found = run.prepare("Riddles")
    assert texts(found.held_out) == [f"riddle riddle riddle {number}" for number in range(4)]
    assert texts(found.train[0]) == [
        f"riddle riddle riddle {number}" for number in range(4, 12)
    ]  # 2 steps of 4 prompts
    assert "environment" in found.verifiers
    assert found.shares == (1.0,)
    assert {name: counts["rows"] for name, counts in found.counts.items()} == {"train": 8, "held_out": 4}
    assert build_spec(run.config("Riddles", {})).evaluation.size == 4


def test_no_more_rows_are_asked_for_than_the_task_or_one_pass_needs(run):
    assert len(texts(run.prepare("Riddles", {"train_size": 3}).train[0])) == 3
    assert len(texts(run.prepare("Riddles", steps=1, folder="short").train[0])) == 4
    assert len(texts(run.prepare("Riddles", steps=9, folder="long").train[0])) == 8  # all that there are


def test_what_it_says_follows_the_rows_own_prompt(run):
    task = run.file({"prompt": "solve", "metadata": {"number": 7}}, {"prompt": "", "metadata": {"number": 8}})
    assert texts(run.prepare("Riddles", task).train[0]) == ["solve\nriddle riddle riddle 7", "riddle riddle riddle 8"]


def test_every_session_of_a_row_gets_what_it_got_before_the_run(run):
    task = run.file(*({"prompt": "solve", "colour": each} for each in ("red", "red", "blue")))
    held_out = run.folder / "held.jsonl"
    held_out.write_text((run.folder / "mine.jsonl").read_text())
    found = run.prepare("Riddles", {**task, "held_out": str(held_out), "held_out_size": 3})
    rows = [*prompts(found.train[0]), *prompts(found.held_out)]
    sessions = [session_row(row, name) for row in rows for name in ("0.1", "0.2")]
    assert sessions[0::2] == sessions[1::2]
    first, again, *others = run.asked  # the first one is tried twice before the others, which it is among
    assert first == again
    assert sorted(map(json.dumps, others)) == sorted(map(json.dumps, sessions[0::2]))
    seeds = [row["seed"] for row in sessions[0::2]]
    assert len(set(seeds)) == 6  # rows that are alike, too, and held-out ones
    assert all(0 <= seed < 2**31 for seed in seeds)
    for row, session in zip(rows, sessions[0::2], strict=True):
        assert row.prompt == f"solve\nriddle riddle riddle {session['seed']}"
        assert beginning_of(row).same(f"riddle riddle riddle {session['seed']}")
        assert not beginning_of(row).same("riddle")


def test_seeds_are_the_same_on_every_machine():
    assert [row_seed(0, "train", row) for row in range(3)] == [row_seed(0, "train", row) for row in range(3)]
    assert len({row_seed(run, name, row) for run in (0, 1) for name in ("train", "held_out") for row in (0, 1)}) == 8


def test_a_run_that_is_resumed_does_not_ask_again(run):
    task = run.file({"prompt": "solve"}, {"prompt": "answer"})
    first = run.prepare("Riddles", task)
    count = len(run.asked)
    assert run.prepare("Riddles", task) == first
    assert len(run.asked) == count


def test_what_prompts_say_is_not_asked_for(run):
    found = run.prepare("Reads", run.file({"prompt": "solve"}, {"prompt": "answer"}))
    assert texts(found.train[0]) == ["solve", "answer"]
    assert [beginning_of(row) for row in prompts(found.train[0])] == [None, None]
    assert session_row(prompts(found.train[0])[0], "0.1") == {
        "prompt": "solve", "answer": "1", "metadata": {}, "seed": "0.1"
    }  # fmt: skip
    assert [row["prompt"] for row in run.asked] == ["solve", "solve"]


def test_a_chat_model_reads_it_as_a_users_message(tmp_path, word_model):
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}<assistant>"
    run = Run(tmp_path, word_model(context=60, template=template))
    task = {**run.file({"prompt": "solve", "metadata": {"number": 1}}), "chat": True}
    (text,) = texts(run.prepare("Riddles", task, words=1).train[0])
    assert text == "<user>solve\nriddle 1</><assistant>"


def test_token_ids_are_the_prompt_as_they_are(run):
    found = run.prepare("Renders", words=7)
    given = (1, 0, 0, 1, 0, 0, 1)
    reader = Prompts(PromptSettings(
        tokenizer=run.model / "tokenizer.json", train=found.train, held_out=found.held_out,
        modes={"forced": DecodingMode(1.0, "a")},
    ))  # fmt: skip
    assert reader.encode(TrajectoryRef("0.0", 0, 0, prompt=3)) == given
    forced = TrajectoryRef("e", 0, 0, Purpose.EVAL, "forced", prompt=1)
    assert reader.encode(forced) == (*given, 0)
    assert texts(found.train[0])[0] == "? a a ? a a ?"  # for people: a word for each


def test_token_ids_that_are_too_long_are_refused_or_dropped_and_never_cut(run):
    for overlong in ("refuse", "truncate-left"):
        with pytest.raises(ConfigError, match="line 1: found a prompt of 11 tokens, expected at most 10"):
            run.prepare("Renders", {"overlong": overlong}, words=ROOM + 1)
    with pytest.raises(ConfigError, match="every prompt is longer than 10 tokens"):
        run.prepare("Renders", {"overlong": "drop"}, words=ROOM + 1)


HARNESS = """
import json, os, urllib.request
row = json.load(open(os.environ["TAILRACE_ROW"]))
asked = {"messages": [{"role": "user", "content": row["prompt"]}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
asking = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(asked).encode(), headers)
urllib.request.urlopen(asking, timeout=600).read()
print('{"reward": 1.0}')
"""


@pytest.mark.parametrize("generated", [False, True])
def test_a_harness_makes_the_prompts_of_a_file_or_of_a_generated_task(tmp_path, word_model, generated):
    """With the tokenizer and the template of the run's model, which the configuration does not name again."""
    model = word_model(context=4000, template="a {% for m in messages %}{{ m.content }}{% endfor %} a")
    (tmp_path / "agent.py").write_text(HARNESS)
    (tmp_path / "mine.jsonl").write_text(
        "".join(json.dumps({"prompt": each, "answer": "1"}) + "\n" for each in ("a a", "b"))
    )
    own = {"train": str(tmp_path / "mine.jsonl"), "verifier": "environment"}
    task = {"name": "tool-sums", "train_size": 3, "held_out_size": 2} if generated else own
    options = {"command": [sys.executable, "agent.py"], "folder": str(tmp_path)}
    environment = {"name": "harness", "workers": 1, "sessions": 2, "options": options}
    config = validate([("mine", {"task": task, "model": {"path": str(model)}, "environment": environment})])
    directory = RunDirectory(tmp_path / "run")
    directory.task.mkdir(parents=True)
    found = prepare(config, directory, lambda row: None)
    rows = prompts(found.train[0])
    begun = [beginning_of(row) for row in rows]
    if generated:
        assert [row["prompt"] for row in get_task("tool-sums").generate("train", 3, config.seed)] == [
            each.prompt for each in begun
        ]
        assert [row.verifier for row in rows] == ["exact"] * 3
        assert len(texts(found.held_out)) == 2
    else:
        assert [(each.prompt, each.tokens) for each in begun] == [("a a", (0, 0, 0, 0)), ("b", (0, 1, 0))]
    assert all(each.tokens[0] == each.tokens[-1] == 0 for each in begun)
    assert prepare(config, directory, lambda row: None) == found
    (role,) = environment_role(config, model, (1,), {}).values()
    assert role.settings.options == {**options, "tokenizer": str(model)}


def refused(run, name, *arguments, **settings):
    with pytest.raises((ConfigError, PromptFileError)) as found:
        run.prepare(name, *arguments, **settings)
    return str(found.value).replace(f"{run.folder}/", "").replace(str(run.folder), "")


def test_an_observation_that_leaves_no_room_is_told_with_its_row(run):
    task = run.file({"prompt": "", "metadata": {"number": 1}})
    (line,) = refused(run, "Riddles", task, words=30).splitlines()
    assert line.startswith("mine.jsonl, line 1: found a prompt of 31 tokens, expected at most 10")


def test_one_that_begins_otherwise_the_second_time_is_told(run):
    (line,) = refused(run, "Fickle", run.file({"prompt": ""})).splitlines()
    assert line.startswith("mine.jsonl, line 1: the environment 'riddles.py:Fickle' began with ")
    assert "expected the same each time" in line


def test_rows_that_do_not_begin_are_told_by_their_place(run):
    lines = refused(
        run, "Weak", run.file(*({"prompt": "", "metadata": {"number": each}} for each in range(4)))
    ).splitlines()
    assert [line.split(": ", 1)[0] for line in sorted(lines)] == ["mine.jsonl, line 2", "mine.jsonl, line 4"]
    assert "no riddle 1" in sorted(lines)[0]


@pytest.mark.parametrize(
    ("name", "rows", "said"),
    [
        ("Renders", [{"prompt": "solve"}], "mine.jsonl, line 1: found a prompt, expected an empty one"),
        ("Riddles", [{"prompt": "a"}, {"prompt": CHAT}], "line 2: found chat messages, expected text"),
        ("Reads", [{"prompt": ""}], "line 1: found an empty prompt, expected text"),
    ],
)  # fmt: skip
def test_prompts_that_it_cannot_follow_are_told(run, name, rows, said):
    (line,) = refused(run, name, run.file(*rows)).splitlines()
    assert said in line


def test_tokens_of_another_tokenizer_are_told(run):
    lines = refused(run, "Renders", run.file({"prompt": ""}), odd=70).splitlines()
    assert lines == [
        "mine.jsonl, line 1: the environment said the token 70, expected one below 2: does it have the model's tokenizer?"
    ]


def test_too_few_rows_of_its_own_are_told(run):
    (line,) = refused(run, "Riddles", {"held_out_size": 12}).splitlines()
    assert line.startswith("key 'task.held_out_size': found 12, expected fewer than the 12 rows of ")


def test_progress_is_told(run):
    run.prepare("Riddles")
    assert run.told[0]["phase"] == "starting the environment"
    assert [row["detail"] for row in run.told if row["phase"] == "beginning each row"][-1] == "12 of 12 rows"
