"""A ranker from the command line: trained, written, and refused in one line."""

import dataclasses
import json

import pytest

from tailrace import contracts as c
from tailrace.cli.components import rank as rank_data
from tailrace.cli.main import main
from tailrace.pipeline.config.models import RunConfig
from tailrace.pipeline.run.directory import RunDirectory, write_json
from tailrace.pipeline.run.eventlog import EventLog
from tailrace.ranker import LengthRanker
from tailrace.ranker.testing import made_examples


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


def test_every_method_on_prompts_held_out(tmp_path, capsys, quick_methods):
    data, out, figures = (
        written(tmp_path / "data.jsonl", made_examples(80)),
        tmp_path / "ranker",
        tmp_path / "figures.json",
    )
    assert main(["rank", str(data), "--out", str(out), "--json", str(figures), "--seed", "1"]) == 0
    found = json.loads(figures.read_text())
    assert set(found) == {"chosen", "ceiling20", "methods"}
    assert {"random", "prompt-length", "family-mean", "lexical", "last-length", "siblings"} == set(found["methods"])
    for row in found["methods"].values():
        assert set(row) == {"recall20", "recall10", "recall5", "tau_b", "train_s"}
        assert 0 <= row["recall20"] <= 1
    ranker = LengthRanker.load(out)
    assert ranker.method == found["chosen"]
    assert not ranker.needs_samples
    shown = capsys.readouterr()
    assert f"{out}: a ranker by {found['chosen']}" in shown.out
    assert "on 16 prompts held out" in shown.out
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


BAD = {
    "no file": ("gone.jsonl", None, "gone.jsonl: found no such file"),
    "another file": (
        "data.csv",
        "prompt,lengths\n",
        "found the ending '.csv', expected .jsonl or .ndjson, or a run's directory",
    ),
    "no rows": ("data.jsonl", "\n", "found no rows"),
    "no JSON": ("data.jsonl", "{\n", "data.jsonl, line 1: found no JSON"),
    "no lengths": ("data.jsonl", '{"prompt": "a"}\n', "data.jsonl, line 1: found no key 'lengths'"),
    "a length of 0": (
        "data.jsonl",
        '{"prompt": "a", "lengths": [1]}\n{"prompt": "a", "lengths": [0]}\n',
        "data.jsonl, line 2: found a length of 0",
    ),
    "too few": ("data.jsonl", '{"prompt": "a", "lengths": [1]}\n', "found 1 different prompts, expected at least 7"),
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


def test_a_run_without_prompts_or_responses_is_one_line(tmp_path, capsys):
    RunDirectory.create(tmp_path / "run", RunConfig().model_dump(mode="json")).unlock()
    assert main(["rank", str(tmp_path / "run"), "--out", str(tmp_path / "ranker")]) == 2
    assert "found no prompts, expected a run that has begun" in capsys.readouterr().err
    assert main(["rank", str(tmp_path), "--out", str(tmp_path / "ranker")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
