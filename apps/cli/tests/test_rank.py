"""A ranker from the command line: trained, written, and refused in one line."""

import dataclasses
import json
import subprocess
import sys

import pytest

from tailrace import contracts as c
from tailrace.cli.components import rank as rank_data
from tailrace.cli.errors import CommandError
from tailrace.cli.main import main
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.ranker import Example, ExampleError, LengthRanker
from tailrace.ranker.testing import language_model, made_examples


@pytest.fixture
def quick_methods(monkeypatch):
    """Only the methods that need no torch: the learned ones have tests of their own."""
    from tailrace.ranker import comparison
    from tailrace.ranker.trials import installed_methods

    found, _ = installed_methods(with_samples=True)
    quick = {name: method for name, method in found.items() if method.quick}
    monkeypatch.setattr(comparison, "installed_methods", lambda *, with_samples: (quick, {"sft": "no torch here"}))


def written(path, examples):
    path.write_text("".join(json.dumps(dataclasses.asdict(example)) + "\n" for example in examples))
    return path


@pytest.mark.deep
def test_every_method_on_prompts_held_out(tmp_path, capsys, quick_methods):
    data, out, figures = (
        written(tmp_path / "data.jsonl", made_examples(80)),
        tmp_path / "ranker",
        tmp_path / "figures.json",
    )
    assert main(["rank", str(data), "--out", str(out), "--json", str(figures), "--seed", "1"]) == 0
    found = json.loads(figures.read_text())
    assert set(found) == {"chosen", "objective", "held_out", "ceiling20", "ceiling10", "ceiling5", "methods"}
    assert {"random", "prompt-length", "family-mean", "lexical", "last-length", "siblings"} == set(found["methods"])
    for row in found["methods"].values():
        assert set(row) == {"recall20", "recall10", "recall5", "tau_b", "train_s"}
        assert 0 <= row["recall20"] <= 1
    ranker = LengthRanker.load(out)
    assert ranker.method == found["chosen"]
    assert not ranker.needs_samples
    shown = capsys.readouterr()
    assert f"{out}: a ranker by {found['chosen']}" in shown.out
    assert "on 8 prompts held out" in shown.out
    assert "sft            not tried: no torch here" in shown.out
    assert "lexical: recall20" in shown.err


def test_a_method_that_is_named(tmp_path, quick_methods):
    data = written(tmp_path / "data.jsonl", made_examples(40))
    assert main(["rank", str(data), "--out", str(tmp_path / "ranker"), "--method", "siblings"]) == 0
    assert LengthRanker.load(tmp_path / "ranker").method == "siblings"


@pytest.mark.deep
def test_with_all_methods(tmp_path):
    data, figures = written(tmp_path / "data.jsonl", made_examples(120)), tmp_path / "figures.json"
    arguments = ["rank", str(data), "--out", str(tmp_path / "ranker"), "--json", str(figures), "--budget-s", "60"]
    assert main(arguments) == 0
    assert {"encoder", "sft", "lexical"} <= set(json.loads(figures.read_text())["methods"])


@pytest.mark.parametrize("objective", ["auto", "quantiles"])
def test_a_language_model_is_fine_tuned_and_its_memory_is_told_before(objective, tmp_path, capsys):
    pytest.importorskip("peft")
    model = language_model(tmp_path / "model")
    data, figures = written(tmp_path / "data.jsonl", made_examples(60)), tmp_path / "figures.json"
    more = ["--option", "steps=3", "--option", "batch=8", "--option", "lora_rank=2", "--objective", objective]
    arguments = ["rank", str(data), "--out", str(tmp_path / "ranker"), "--json", str(figures), "--init", str(model)]
    assert main([*arguments, "--method", "sft", "--only", "random", *more]) == 0
    found = json.loads(figures.read_text())
    tried = ["sft:write", "sft:quantiles", "sft:pairwise"] if objective == "auto" else ["sft"]
    assert list(found["methods"]) == ["random", *tried]
    assert found["chosen"] == "sft"
    shown = capsys.readouterr()
    assert any(line.startswith(f"{model}: about 0.") for line in shown.err.splitlines())
    assert "GB to fine-tune in" in shown.err
    assert f"a ranker by sft, which learned the objective {found['objective']}" in shown.out
    assert LengthRanker.load(tmp_path / "ranker").objective == found["objective"]


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_a_run_fine_tunes_a_language_model_that_outlives_a_kill(tmp_path):
    """StreamRL's quick start with a small language model as its ranker, which is killed once it has learned."""
    pytest.importorskip("peft")
    model, run = language_model(tmp_path / "model"), tmp_path / "run"
    table = {
        "method": "sft", "init": str(model), "budget_s": 240, "options.steps": 6, "options.batch": 8, "options.lora_rank": 2,
    }  # fmt: skip
    settings = [f"--set=ranker.{key}={value}" for key, value in table.items()]
    command = [
        sys.executable,
        "-m",
        "tailrace.cli.main",
        "run",
        "streamrl",
        "--plain",
        "--run-dir",
        str(run),
        *settings,
    ]
    few = [
        "--set=pipeline.steps=6",
        "--set=evaluation.controls=false",
        "--set=executor.name=local",
        "--kill=ranker@step4",
    ]
    done = subprocess.run([*command, *few], capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    summary = json.loads((run / "summary.json").read_text())
    assert summary["ranker_method"] == "sft"
    assert summary["ranker_objective"] in ("write", "quantiles", "pairwise")
    assert 0 < summary["ranker_ceiling20"] <= 1
    assert 0 <= summary["ranker_recall20"] <= 1
    assert summary["restarts"]["ranker"] == 1
    assert 0 < summary["unpredicted"] < summary["trained_trajectories"]
    assert 0 < summary["unpredicted_share"] < 1
    assert summary["predicted_ahead_s"] > 0
    assert summary["waited_for_predictions_s"] == 0


def test_rows_as_data_sets_have_them(tmp_path):
    """One response a row, other names of columns, responses as text, and conversations."""
    rows = [{"problem": f"p{at // 2}", "n": 3 + at, "truncated": at == 1} for at in range(6)]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = rank_data.read_examples(file, rank_data.Columns("problem", "n"))
    assert [(one.prompt, one.lengths, one.truncated) for one in found] == [
        ("p0", (3, 4), (False, True)),
        ("p1", (5, 6), ()),
        ("p2", (7, 8), ()),
    ]
    pytest.importorskip("torch")
    policy = language_model(tmp_path / "policy")
    from tokenizers import Tokenizer

    tokens = lambda text: len(Tokenizer.from_file(str(policy / "tokenizer.json")).encode(text).ids) + 1  # noqa: E731
    file.write_text(json.dumps({"problem": "p", "generations": ["Sum up 1", "Sum"]}) + "\n")
    (one,) = rank_data.read_examples(file, rank_data.Columns("problem", response="generations"), policy)
    assert one.lengths == (tokens("Sum up 1"), tokens("Sum"))
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    (policy / "chat_template.jinja").write_text(template)
    (policy / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    talk = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Sum up 1"},
        {"role": "user", "content": "?"},
    ]
    file.write_text(json.dumps({"conversation": talk}) + "\n" + json.dumps({"prompt": "yo", "length": 5}) + "\n")
    first, second = rank_data.read_examples(file, policy=policy)
    assert (first.prompt, first.lengths) == ("<user>hi<assistant>", (tokens("Sum up 1"),))
    assert (second.prompt, second.lengths) == ("<user>yo<assistant>", (5,))


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_other_kinds_of_files(ending, tmp_path):
    file = tmp_path / f"data.{ending}"
    if ending == "csv":
        file.write_text("prompt,length\na,4\nb,5\na,9\n")
    else:
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(
            pyarrow.table({"prompt": ["a", "b"], "lengths": [[4, 9], [5]]}), file
        )
    assert [(one.prompt, one.lengths) for one in rank_data.read_examples(file)] == [("a", (4, 9)), ("b", (5,))]


def test_csv_has_lists_truths_and_numbers_as_text(tmp_path):
    file = tmp_path / "data.csv"
    file.write_text(
        'prompt,lengths,truncated,version,family\na,"[5, 6]","[true, False]",3,x\nb,7.0,True,0,12\nc,8,,,\nd,9,FALSE,1.0,\n'
    )
    assert rank_data.read_examples(file) == [
        Example("a", (5, 6), (True, False), "x", 3),
        Example("b", (7,), (True,), "12", 0),
        Example("c", (8,)),
        Example("d", (9,), (False,), "", 1),
    ]
    file.write_text("prompt,length\na,4.5\n")
    with pytest.raises(ExampleError, match=r"data\.csv, line 2: found"):
        rank_data.read_examples(file)


def test_what_it_knows_of_another_policys_lengths(tmp_path, capsys, quick_methods):
    data = written(tmp_path / "data.jsonl", made_examples(60))
    other = written(tmp_path / "other.jsonl", made_examples(30, seed=8))
    figures = tmp_path / "figures.json"
    arguments = ["rank", str(data), "--out", str(tmp_path / "ranker"), "--json", str(figures), "--transfer", str(other)]
    assert main([*arguments, "--only", "prompt-length", "--by-family"]) == 0
    found = json.loads(figures.read_text())
    assert set(found["methods"]) == {"prompt-length"}
    assert 0 <= found["methods"]["prompt-length"]["transfer_recall20"] <= 1
    assert "on the other data, where the ceiling of recall20 is" in capsys.readouterr().out


BAD = {
    "no file": ("gone.jsonl", None, "gone.jsonl: found no such file"),
    "another file": ("data.txt", "prompt,lengths\n", "found the ending '.txt', expected one of .jsonl"),
    "no rows": ("data.jsonl", "\n", "found no rows"),
    "no JSON": ("data.jsonl", "{\n", "data.jsonl, line 1: found no JSON"),
    "no lengths": ("data.jsonl", '{"prompt": "a"}\n', "data.jsonl, line 1: found no key 'lengths'"),
    "a length of 0": (
        "data.jsonl",
        '{"prompt": "a", "lengths": [1]}\n{"prompt": "a", "lengths": [0]}\n',
        "data.jsonl, line 2: found a length of 0",
    ),
    "no prompt": ("data.jsonl", '{"text": "a", "lengths": [1]}\n', "line 1: found no key prompt or question or"),
    "messages": (
        "data.jsonl",
        '{"messages": [{"role": "user", "content": "a"}], "lengths": [1]}\n',
        "found prompts that are chat messages, expected --policy",
    ),
    "too few": ("data.jsonl", '{"prompt": "a", "lengths": [1, 2]}\n', "found 1 different prompts, of which 1 are left"),
    "all equal": (
        "data.jsonl",
        "".join(f'{{"prompt": "{n}", "lengths": [4]}}\n' for n in range(9)),
        "found 9 responses, all of 4 tokens, expected lengths that differ",
    ),
    "all truncated": (
        "data.jsonl",
        "".join(f'{{"prompt": "{n}", "lengths": [{n + 1}], "truncated": [true]}}\n' for n in range(9)),
        "found 9 responses, all truncated, expected some that ended",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_data_is_one_line(case, tmp_path, capsys):
    name, content, said = BAD[case]
    if content is not None:
        (tmp_path / name).write_text(content)
    assert main(["rank", str(tmp_path / name), "--out", str(tmp_path / "ranker")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not (tmp_path / "ranker").exists()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--method", "lexcal"], "found the method 'lexcal', expected one of auto,"),
        (["--budget-s", "0"], "found budget_s = 0.0, expected seconds above 0"),
        (["--split", "7:2"], "--split: found '7:2', expected three parts above 0, such as 7:2:1"),
        (["--option", "trees"], "--option: found 'trees', expected KEY=VALUE"),
        (["--option", "trees=4"], "found the option 'trees', expected a method by name"),
        (["--method", "lexical", "--option", "trees=few"], "found trees = 'few' of the method 'lexical', expected int"),
        (["--method", "lexical", "--objective", "write"], "--objective: found one beside the method 'lexical'"),
        (["--method", "sft", "--objective", "pairwise"], "--objective: found one without a model, expected --init"),
        (["--init", "/no/model"], "/no/model: found no tokenizer.json, expected a model directory"),
        (["--only", "lexcal"], "found the method 'lexcal', expected one of auto,"),
    ],
)
def test_bad_options_are_one_line(more, said, tmp_path, capsys):
    data = written(tmp_path / "data.jsonl", made_examples(20))
    assert main(["rank", str(data), "--out", str(tmp_path / "ranker"), *more]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def routed(replica, seq, *refs):
    return c.Route(replica=replica, trajectories=refs, seq=seq)


def test_a_run_gives_all_finished_responses(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    directory = RunDirectory.create(tmp_path / "run", RunConfig().model_dump(mode="json"))
    prompts = [f"prompt {at}" for at in range(4)]
    train = directory.task / "train.jsonl"
    train.write_text("".join(json.dumps({"prompt": prompt, "answer": "1"}) + "\n" for prompt in prompts))
    directory.model.mkdir()
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a")).save(
        str(directory.model / "tokenizer.json")
    )
    prepared = {
        "model": str(directory.model), "train": [str(train)], "held_out": None, "verifier": "exact", "forced_prefix": "",
        "demonstrations": None, "shares": [1.0], "verifiers": ["exact"],
    }  # fmt: skip
    write_json(directory.prepared, prepared)
    first, second = (c.TrajectoryRef(f"0.{at}", 0, at, prompt=0) for at in range(2))
    other, never = c.TrajectoryRef("1.0", 1, 0, prompt=2), c.TrajectoryRef("2.0", 2, 0, prompt=3)
    asked = c.TrajectoryRef("e0", 0, 0, c.Purpose.EVAL, "greedy")
    with EventLog(directory.events) as log:
        log.append(0.0, [c.Pulled("0", 4)], [routed("0", 1, first, second, asked)])
        log.append(
            1.0,
            [c.Finished("0", "0.0", 7), c.Finished("0", "e0", 99), c.Pulled("0", 5)],
            [routed("0", 2, other, c.TrajectoryRef("1.1", 1, 1, prompt=2), never)],
        )
        log.append(2.0, [c.Finished("0", "0.1", 9, c.FinishReason.LENGTH), c.TurnEnded("0", "1.0", 2)], [])
        log.append(3.0, [c.Turned("1.0", 1, 12)], [routed("0", 3, dataclasses.replace(other, kept=12))])
        log.append(4.0, [c.TurnEnded("0", "1.0", 13)], [])
        log.append(5.0, [c.Turned("1.0", 2, 20, done=True)], [])
        log.append(5.0, [c.TurnEnded("0", "1.1", 4)], [])
        log.append(6.0, [c.Turned("1.1", 1, 9, done=True, reason=c.FinishReason.LENGTH)], [])
    directory.unlock()
    one, two = rank_data.read_examples(tmp_path / "run")
    assert (one.lengths, one.truncated, one.version) == ((7, 9), (False, True), 4)
    assert (two.lengths, two.truncated, two.version) == ((3, 4), (False, True), 5)
    assert {one.prompt, two.prompt} < set(prompts)
    (directory.model / "tokenizer.json").unlink()
    with pytest.raises(CommandError, match=r"run: found no .*tokenizer\.json, expected that of the model"):
        rank_data.read_examples(tmp_path / "run")


def test_a_run_without_prompts_or_responses_is_one_line(tmp_path, capsys):
    RunDirectory.create(tmp_path / "run", RunConfig().model_dump(mode="json")).unlock()
    assert main(["rank", str(tmp_path / "run"), "--out", str(tmp_path / "ranker")]) == 2
    assert "found no prompts, expected a run that has begun" in capsys.readouterr().err
    assert main(["rank", str(tmp_path), "--out", str(tmp_path / "ranker")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
