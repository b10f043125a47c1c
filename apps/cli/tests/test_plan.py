"""`tailrace plan`: what it prints, the configuration it writes, and what it refuses."""

import json

import pytest

from tailrace.cli.main import main
from tailrace.pipeline.config.target import configuration

CONFIG = """
app = "laminar"
pipeline = { steps = 4, prompts_per_step = 8, samples_per_prompt = 4, prompts_per_replica = 4 }
rollout = { max_tokens = 4096 }
fleet.model = "Qwen2.5-7B"
fleet.trainer.gpus = 3
fleet.rollout.gpus = 1
fleet.workload.response = [{ median = 500, sigma = 0.9 }]
"""


def test_the_best_is_printed_and_written_as_a_configuration(tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(CONFIG)
    best, found = tmp_path / "best.toml", tmp_path / "found.json"
    options = ["--gpus", "4", "--bound", "0", "--jobs", "1", "--out", str(best), "--json", str(found)]
    status = main(["plan", str(tmp_path / "mine.toml"), *options])
    out = capsys.readouterr().out
    assert status == 0
    assert "tokens/s" in out
    assert "Best of" in out
    options = json.loads(found.read_text())["options"]
    assert options
    assert all(option["staleness_max"] == 0 for option in options)
    written = configuration(str(best))
    assert written.pipeline.prompts_per_step == 8
    assert written.fleet["rollout"]["tensor_parallel"] == int(options[0]["split"].rpartition(" ")[2])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gpus", "4", "--objective", "speed"], "throughput or cost"),
        (["--gpus", "0"], "--gpus"),
        (["--gpus", "4", "--set", "fleet.model=Qwen9"], "Qwen9"),
        (["--gpus", "1"], "2 GPUs would"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, arguments, words):
    (tmp_path / "mine.toml").write_text(CONFIG)
    assert main(["plan", str(tmp_path / "mine.toml"), *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
