"""`tailrace plan` over what was measured of both stages: what it prints and writes, and what it refuses."""

import json
from pathlib import Path

import pytest

from tailrace.cli.main import main
from tailrace.pipeline.config.target import configuration
from tailrace.pipeline.run.build import build_spec

# The batch and the costs that tailrace-repack works out by hand: two replicas of two devices take 65 s, training 66 s.
CONFIG = """
app = "laminar"
[pipeline]
prompts_per_step = 2
samples_per_prompt = 2
admission = "one-step"
[pipeline.provisioning]
name = "balanced"
lengths = [10, 10, 10, 40]
replica_costs = [[1, 0, 0.0, 0.0, 1.0, 1.0], [2, 0, 0.0, 0.0, 0.5, 1.0]]
training_times = [[1, 130.0], [2, 66.0], [4, 34.0]]
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(CONFIG)


def test_the_best_share_is_printed_and_written_as_a_configuration_that_begins_so(capsys):
    assert main(["plan", "mine.toml", "--gpus", "6", "--out", "best.toml", "--json", "best.json"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [
        "Best: 4 of 6 devices generate (replicas: 2, of 2 each), 2 train.",
        "Predicted: 65 s of generation and 66 s of training a batch; an iteration takes 66 s.",
        "  trainer.processes = 2",
        "  rollout.replicas = 2",
        "  rollout.options.tensor_parallel_size = 2",
        "  pipeline.provisioning.devices = 4",
        "Written as a configuration: best.toml",
    ]
    assert json.loads(Path("best.json").read_text())["generation"] == {"replicas": 2, "size": 2, "seconds": 65.0}
    best = configuration("best.toml")
    assert (best.trainer.processes, best.rollout.options["tensor_parallel_size"]) == (2, 2)
    policy = build_spec(best).provisioning
    assert (policy.start, policy.spans, policy.begins.seconds) == (2, 2, 65.0)  # type: ignore[attr-defined]


def test_what_was_changed_for_the_search_is_in_the_file_that_it_writes():
    changes = ["pipeline.steps=7", "task.train=rows.jsonl", 'pipeline.sync="when-useful"']
    options = [word for change in changes for word in ("--set", change)]
    Path("deep").mkdir()
    assert main(["plan", "mine.toml", "--gpus", "6", *options, "--out", "deep/best.toml"]) == 0
    best = configuration("deep/best.toml")
    assert (best.pipeline.steps, best.pipeline.sync.name) == (7, "when-useful")
    assert best.task.train == Path("rows.jsonl").absolute()  # as it was typed, relative to where one is
    assert best.trainer.processes == 2


@pytest.mark.parametrize("option", ["--out", "--json"])
@pytest.mark.parametrize("name", ["mine.toml", "./mine.toml"])
def test_the_configuration_that_is_searched_is_not_written_over(option, name, capsys):
    assert main(["plan", "mine.toml", "--gpus", "6", option, name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "found the configuration that is searched, expected another file" in line
    assert Path("mine.toml").read_text() == CONFIG


def test_devices_that_save_nothing_are_left_over(capsys):
    assert main(["plan", "mine.toml", "--gpus", "7", "--set", "pipeline.provisioning.training_times=[[4, 70.0]]"]) == 0
    assert "2 of 7 devices generate (replicas: 1, of 2 each), 4 train, 1 would save nothing." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "expected --gpus N"),
        (["--gpus", "1"], "devices=1, expected a whole number of at least 2"),
        (["--gpus", "6", "--price", "H800=2"], "found --price, --objective or --bound for a plan from measured runs"),
        (["--gpus", "6", "--set", "pipeline.admission=on-policy"], "'on-policy', where stages take turns"),
        (["--gpus", "2", "--set", "pipeline.provisioning.training_times=[[2, 9.0]]"], "no way to share 2 devices"),
        (["--gpus", "4", "--set", "pipeline.provisioning.training_times=[[2, 0.0]]"], "expected seconds above 0"),
    ],
)
def test_what_cannot_be_planned_is_one_line(arguments, words, capsys):
    assert main(["plan", "mine.toml", *arguments, "--out", "best.toml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not Path("best.toml").exists()
